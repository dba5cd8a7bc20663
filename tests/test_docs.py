"""Folders of architecture.md, links of all pages, and names in the glossary exist."""

import re
import subprocess

import pytest
import yaml
from conftest import ROOT
from PIL import Image

PACKAGES = ("conf", "data_pipeline", "models", "training", "evaluation")
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
PAGES = [name for name in TRACKED if name.endswith(".md")]
MADE = ("reference/", "decisions/index.md", "tutorials/first_correction.md")
"""Pages of docs/ that only the site has: `make docs` makes them, and Sphinx follows their links."""


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_architecture_names_every_package_folder_once():
    folders = {name.rpartition("/")[0] for name in TRACKED if name.endswith(".py") and name.startswith(PACKAGES)}
    named = re.findall(r"^\| `([a-z_/]+)/` \|", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    assert sorted(name for name in named if name.startswith(PACKAGES)) == sorted(folders)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_file_names_exist(page):
    """Links to files of the project, and names of Python files in code marks."""
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    written = [link for link in links if not link.startswith(MADE)]
    assert not [link for link in written if not ((ROOT / page).parent / link).exists()]
    if page != "CHANGELOG.md":
        named = re.findall(
            r"`((?:data_pipeline|models|training|evaluation|conf|tests|benchmarks|scripts)/[\w/]+\.\w+)`", text
        )
        assert not [name for name in named if not (ROOT / name).exists()]


def test_python_names_of_the_glossary_exist():
    text = (ROOT / "docs/glossary.md").read_text()
    classes = set(re.findall(r"`([A-Z]\w+)`", text))
    source = "\n".join(
        (ROOT / name).read_text() for name in TRACKED if name.endswith(".py") and name.startswith(PACKAGES)
    )
    assert not [name for name in classes if not re.search(rf"^class {name}\b", source, re.MULTILINE)]
    options = set(re.findall(r"`[a-z]+\.([a-z_]+)`", text))
    configured = "\n".join((ROOT / name).read_text() for name in TRACKED if name.endswith(".yaml"))
    assert not [name for name in options if not re.search(rf"\b{name}:", configured)]


def test_every_option_of_correct_is_in_its_table():
    """The rows of the table are the options of conf/correct.yaml, with their defaults."""
    configured = yaml.safe_load((ROOT / "conf/correct.yaml").read_text())
    defaults = {name: value for name, value in configured.items() if name not in ("defaults", "hydra")}
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\| ", (ROOT / "docs/correct.md").read_text(), re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(defaults)
    assert {name: yaml.safe_load(text or "???") for name, text in rows} == defaults


def test_every_long_test_is_listed():
    table = (ROOT / "docs/testing.md").read_text().partition("## Long tests")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(tests/[\w/]+\.py)`", table, re.MULTILINE)
    long = [
        name
        for name in TRACKED
        if name.endswith(".py") and name.startswith("tests/") and "pytest.mark.long" in (ROOT / name).read_text()
    ]
    assert sorted(listed) == sorted(name for name in long if name != "tests/test_docs.py")


def test_pictures_of_the_gallery_are_shown_described_and_small():
    page, folder = (ROOT / "docs/gallery.md").read_text(), ROOT / "docs/gallery"
    shown = {path: text for text, path in re.findall(r"!\[([^\]]*)\]\((gallery/\w+\.png)\)", page)}
    assert {f"gallery/{path.name}" for path in folder.iterdir()} == {*shown}
    assert all(len(text) > 30 for text in shown.values())
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    for path in folder.iterdir():
        with Image.open(path) as picture:
            assert len(picture.convert("RGB").getcolors(1 << 20)) > 20, path.name
