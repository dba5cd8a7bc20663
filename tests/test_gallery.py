"""The pictures of docs/gallery.md are there, described, small, and made by one command."""

import re

from conftest import ROOT
from PIL import Image

PAGE = (ROOT / "docs/gallery.md").read_text()
FOLDER = ROOT / "docs/gallery"
SHOWN = {path: text for text, path in re.findall(r"!\[([^\]]*)\]\((gallery/\w+\.png)\)", PAGE)}


def test_every_picture_is_shown_once_and_described():
    assert {f"gallery/{path.name}" for path in FOLDER.iterdir()} == {*SHOWN}
    assert len(SHOWN) == PAGE.count("](gallery/")
    assert all(len(text) > 30 for text in SHOWN.values())


def test_the_pictures_are_small_and_no_blanks():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000
    for path in FOLDER.iterdir():
        with Image.open(path) as picture:
            assert 300 < picture.width <= 1100
            assert len(picture.convert("RGB").getcolors(1 << 20)) > 20, path.name


def test_the_command_of_the_page_writes_these_pictures():
    """The make target runs the script, whose last line copies the figures that the page shows."""
    assert re.search(r"^gallery: setup\n\t@scripts/gallery$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    *_, last = (ROOT / "scripts/gallery").read_text().splitlines()
    assert last == "python scripts/shrink_pictures.py $run/figures docs/gallery"
