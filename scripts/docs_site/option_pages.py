"""The pages of all options, made from conf/."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from deepweather import VERBS

from conf.option_files import Option, OptionFile, read_group, read_option_file
from data_pipeline.common.errors import InputError
from docs_site.python_names import ROOT, definition, resolve

CONF = ROOT / "conf"
GROUPS = {
    "data": "where the forecasts and analyses are, and which years train, validate and test",
    "cache": "memory, disk and threads for samples that are read ahead",
    "task": "what is corrected, from which inputs, at which lead times",
    "model": "the model and its options",
    "loss": "the loss that training minimises",
    "trainer": "epochs, batches, optimizer, hardware and mesh of a training",
    "cluster": "where statistics and a store are computed",
    "experiment": "options of a publication or of the published results, as one name",
}
"""Groups of options, each a folder of conf/, with their purpose."""
PREFIXES = {"cache": "data.cache"}
"""Where the options of a group are found, if not under the name of the group."""
SINGLE = ("trainer", "cache")
"""Groups with one choice."""
INDEX = """# Options

For users who look up an option: its name, its default and its meaning. These pages are made from the files in `conf/`, which the commands read.
`deepweather VERB --cfg job` prints all options of a command with their values. They may stand in [a file](/operations.md#options-in-a-file).

| verb | purpose |
|---|---|
{verbs}

A group is a set of options that one word chooses: `model=unet` chooses the file `unet.yaml` in `conf/model`, and `model.width=32` changes one of
its options.

| group | purpose |
|---|---|
{groups}

```{{toctree}}
:hidden:

{pages}
```
"""  # noqa: E501


def option_pages() -> dict[str, str]:
    """Return the pages by their file names; raise an error that names every option without a meaning."""
    verbs = {verb: read_option_file(CONF / f"{verb}.yaml") for verb in VERBS}
    groups = {group: read_group(CONF / group) for group in GROUPS}
    described = [*verbs.values(), *(file for group, files in groups.items() if group != "experiment" for file in files)]
    refuse_without_meaning(described)
    pages = {f"{verb}.md": _verb_page(verb, file) for verb, file in verbs.items()}
    pages |= {f"{group}.md": _group_page(group, files) for group, files in groups.items()}
    pages["index.md"] = INDEX.format(
        verbs="\n".join(f"| [`{verb}`]({verb}.md) | {about} |" for verb, (_, about) in VERBS.items()),
        groups="\n".join(f"| [`{group}`]({group}.md) | {about} |" for group, about in GROUPS.items()),
        pages="\n".join([*VERBS, *GROUPS]),
    )
    return pages


def refuse_without_meaning(files: list[OptionFile]) -> None:
    """Raise an error that names every option without a meaning."""
    without = [f"{_place(file.path)}: {option.name}" for file in files for option in file.options if not option.meaning]
    if without:
        count = "an option has" if len(without) == 1 else f"{len(without)} options have"
        raise InputError(f"{count} no meaning: {'; '.join(without)}; write it as a comment behind the value")


def _place(path: Path) -> str:
    """Return the path of a file in the project, the name of any other."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def anchor(file: str, option: str) -> str:
    """Return the anchor of an option; `file` is a verb, or a group and a choice such as model-unet."""
    return f"option-{file}-{option}".replace(".", "-").replace("/", "-")


def _verb_page(verb: str, file: OptionFile) -> str:
    """Return the page of a verb: its groups and its own options."""
    lines = [
        f"# deepweather {verb}",
        "",
        f"For users of `deepweather {verb}`: every option, its default and its meaning.",
    ]
    lines += ["", _prose(file.about), ""]
    if file.groups:
        lines += ["| group | default | options |", "|---|---|---|"]
        for group, choice in file.groups.items():
            name, _, place = group.partition("@")
            chosen = f"`{choice}`" if choice else "none"
            lines.append(f"| `{place or name}` | {chosen} | [{name}]({name}.md) |")
        lines.append("")
    return "\n".join([*lines, _table(file.options, verb, ""), ""])


def _group_page(group: str, files: list[OptionFile]) -> str:
    """Return the page of a group: each choice with its class and its options."""
    prefix = PREFIXES.get(group, group)
    use = (
        f"change an option of `{prefix}`" if group in SINGLE else f"choose `{group}=NAME`, or change one of its options"
    )
    lines = [f"# {group}", "", f"For users who {use}: {GROUPS[group]}."]
    for file in files:
        name = file.path.relative_to(CONF / group).with_suffix("").as_posix()
        if name.startswith("base/"):
            continue  # shared parts of experiments, which are no choice
        title = f"Options of {prefix}" if group in SINGLE else f"{group}={name}"
        lines += ["", f"## {title}", "", _prose(file.about), ""]
        if file.target:
            target = resolve(file.target)
            lines += [f"{_summary(target)} Class {{py:obj}}`{target}`.", ""]
        if group == "experiment":
            lines += ["```yaml", _without_comments(file.path), "```"]
        else:
            lines.append(_table(file.options, f"{group}-{name}", f"{prefix}."))
    return "\n".join([*lines, ""])


def _without_comments(path: Path) -> str:
    return "\n".join(line for line in path.read_text("utf-8").splitlines() if not line.startswith("#"))


def _summary(full: str) -> str:
    """Return the first sentence of the docstring of a class or function."""
    text = ast.get_docstring(definition(full).node) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return _prose(re.split(r"(?<=[.:])\s", first)[0].rstrip(".:") + ".")


def _table(options: tuple[Option, ...], file: str, prefix: str) -> str:
    """Return a table of options, each row with an anchor."""
    if not options:
        return "It has no options."
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for option in options:
        name = f"[]{{#{anchor(file, option.name)}}}{_code(prefix + option.name)}"
        default = "must be given" if option.default == "???" else _code(option.default)
        rows.append(f"| {name} | {default} | {_prose(option.meaning)} |")
    return "\n".join(rows)


def _code(text: str) -> str:
    """Return text as code within a cell of a table."""
    return "`" + text.replace("|", "\\|") + "`"


def _prose(text: str) -> str:
    """Return a comment as Markdown: names of pages become links, and all other markup is escaped."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else _linked(piece) for piece in pieces).replace("|", "\\|")


def _linked(text: str) -> str:
    pieces = re.split(r"docs/([\w/-]+)\.md", text)
    escaped = [re.sub(r"([\[\]{}<>*_])", r"\\\1", piece) for piece in pieces]
    return "".join(f"[{escaped[k]}](/{piece}.md)" if k % 2 else escaped[k] for k, piece in enumerate(pieces))
