"""Build the docs site: `python -m docs_site.build [FOLDER]`, by default into site/."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

from data_pipeline.common.errors import InputError
from docs_site.accessible import with_access
from docs_site.notebook import as_page
from docs_site.option_pages import option_pages
from docs_site.python_names import ROOT
from docs_site.python_pages import python_pages

CONFIG = Path(__file__).parent
"""Folder of Sphinx's conf.py."""
SHARED = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages outside of docs/ that the site has, too."""
DECISIONS = """# Decisions

For readers who ask why something is as it is: each page says what holds, why, and which alternatives were rejected.

{rows}
"""


def write_sources(folder: Path) -> None:
    """Write all pages of the site as Markdown: docs/ with its notebooks, the reference, and the list of decisions."""
    shutil.copytree(ROOT / "docs", folder, dirs_exist_ok=True)
    for path in folder.rglob("*.md"):
        text = path.read_text("utf-8")
        path.write_text(re.sub(rf"\]\((\.\./)+({'|'.join(SHARED)})", r"](/\2", text), "utf-8")
    for path in folder.rglob("*.ipynb"):
        path.with_suffix(".md").write_text(as_page(path), "utf-8")
    for name in SHARED:
        text = (ROOT / name).read_text("utf-8").replace("](docs/decisions)", "](docs/decisions/index.md)")
        (folder / name).write_text(text.replace("](docs/", "]("), "utf-8")
    _write_decisions(folder / "decisions")
    for name, pages in {"options": option_pages(), "python": python_pages()}.items():
        for file, text in pages.items():
            path = folder / "reference" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")


def _write_decisions(folder: Path) -> None:
    """Write the page that lists all decisions; in the navigation of every page they would be the longest part."""
    rows = []
    for path in sorted(folder.glob("*.md")):
        text = path.read_text("utf-8")
        rows.append(f"- [{text.partition(chr(10))[0].removeprefix('# ')}]({path.name})")
        path.write_text(f"---\norphan: true\n---\n\n{text}", "utf-8")
    (folder / "index.md").write_text(DECISIONS.format(rows="\n".join(rows)), "utf-8")


def render(sources: Path, pages: Path, work: Path, jobs: str = "auto") -> int:
    """Write Markdown pages as HTML; return 0, or 1 after any warning, such as a broken link. Warnings are on stderr."""
    options = ["-W", "--keep-going", "-q", "-E", "-j", jobs, "-d", str(work), "-c", str(CONFIG), "-b", "html"]
    return build_main([*options, str(sources), str(pages)])


def build(folder: Path, jobs: str = "auto") -> int:
    """Build the site into a folder, which is replaced; return the code of `render`."""
    with tempfile.TemporaryDirectory() as work:
        sources, pages = Path(work) / "docs", Path(work) / "site"
        write_sources(sources)
        code = render(sources, pages, Path(work) / "trees", jobs)
        if code == 0:
            for path in pages.rglob("*.html"):
                path.write_text(with_access(path.read_text("utf-8")), "utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            shutil.move(pages, folder)
    return code


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    try:
        sys.exit(build(target))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
