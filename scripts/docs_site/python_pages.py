"""The pages of Python names: of `import deepweather`, and of the modules that users call and extend."""

from __future__ import annotations

import ast

from deepweather import NAMES

from docs_site.python_names import as_markdown, definition, entry, module_file, parse, public_names, resolve

SECTIONS = {
    "data": (
        "Data and tasks",
        [
            "data_pipeline.protocols",
            "data_pipeline.archive",
            "data_pipeline.split",
            "data_pipeline.task",
            "data_pipeline.variables.variable",
            "data_pipeline.grid",
            "data_pipeline.grids.points",
            "data_pipeline.sample",
            "data_pipeline.dataset",
            "data_pipeline.formats.catalog",
            "data_pipeline.formats.open",
            "data_pipeline.cluster",
            "data_pipeline.prefetch.budget",
            "data_pipeline.statistics.statistic",
            "data_pipeline.statistics.normalization",
            "data_pipeline.statistics.efi",
            "data_pipeline.synthetic.heat",
            "data_pipeline.synthetic.twin.experiment",
        ],
    ),
    "models": (
        "Correctors and models",
        [
            "models.protocol",
            "models.corrector",
            "models.statistical.*",
            "models.networks.*",
            "models.published.*",
            "models.averages.*",
        ],
    ),
    "layers": ("Layers on the sphere", ["models.layers.*"]),
    "distributions": ("Distributions", ["models.distribution.*"]),
    "training": (
        "Training",
        [
            "training.optimization.loss",
            "training.optimization.eecrps",
            "training.run.trainer_options",
            "training.step.correction_module",
            "training.step.datamodule",
            "training.optimization.optimizer",
        ],
    ),
    "evaluation": (
        "Scores",
        [
            "evaluation.score_xarray",
            "evaluation.scoring.aggregation",
            "evaluation.scores.*",
            "evaluation.significance.*",
        ],
    ),
}
"""Pages: title and modules; `.*` stands for all modules of a package."""
INDEX = """# Python

For users who call deepweather from Python, and for contributors who extend it. Docstrings make these pages.

| page | modules |
|---|---|
{rows}

```{{toctree}}
:hidden:

{pages}
```
"""


def python_pages() -> dict[str, str]:
    """Return the pages by their file names."""
    pages = {f"{page}.md": _section(title, patterns) for page, (title, patterns) in SECTIONS.items()}
    rows = [f"| [{title}]({page}.md) | {_listed(patterns)} |" for page, (title, patterns) in SECTIONS.items()]
    rows.insert(0, "| [import deepweather](door.md) | the names for notebooks and scripts |")
    pages["door.md"] = _door()
    pages["index.md"] = INDEX.format(rows="\n".join(rows), pages="\n".join(["door", *SECTIONS]))
    return pages


def modules_of(pattern: str) -> list[str]:
    """Return the modules that a pattern names: itself, or all modules of a package."""
    if not pattern.endswith(".*"):
        return [pattern]
    package = pattern.removesuffix(".*")
    files = sorted(module_file(package).parent.glob("*.py"))
    return [f"{package}.{path.stem}" for path in files if path.stem != "__init__"]


def _listed(patterns: list[str]) -> str:
    return ", ".join(f"`{pattern}`" for pattern in patterns)


def _section(title: str, patterns: list[str]) -> str:
    """Return the page of several modules: the docstring of each and its public names."""
    lines = [f"# {title}", "", f"For readers who call or extend these modules: {_listed(patterns)}."]
    for module in (module for pattern in patterns for module in modules_of(pattern)):
        lines += ["", f"## {module}", "", as_markdown(ast.get_docstring(parse(module)) or "")]
        for name in public_names(module):
            lines += ["", entry(name)]
    return "\n".join([*lines, ""])


def _door() -> str:
    """Return the page of the names of `import deepweather`, each with the docstring of its definition."""
    lines = ["# import deepweather", "", "For notebooks and scripts: the names of `import deepweather as dw`."]
    for name, module in NAMES.items():
        lines += ["", entry(definition(resolve(f"{module}.{name}")), f"deepweather.{name}")]
    return "\n".join([*lines, ""])
