"""The docs site: it builds without a warning, has every option and public name, and its pages have no barriers."""

import ast
import html
import inspect
import logging
import os
import re
from pathlib import Path

import deepweather
import pytest
import yaml
from conftest import ROOT
from docs_site import option_pages
from docs_site.build import build, render
from docs_site.python_pages import SECTIONS, modules_of
from omegaconf import OmegaConf

from conf.hydra_command import composed
from conf.option_files import read_option_file
from data_pipeline.common.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:'myst_parser")  # a use of Sphinx that MyST will have to change
SHOWN = (
    "index.html",
    "scores.html",
    "data/netcdf.html",
    "tutorials/twin.html",
    "reference/options/trainer.html",
    "reference/python/distributions.html",
)
"""The home page, guides with wide tables, a tutorial, and pages of the reference."""
ID = re.compile(r'\sid="([^"]+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site; CI names one that `make docs` has just built."""
    if built := os.environ.get("DEEPWEATHER_DOCS_SITE"):
        return Path(built)
    folder = tmp_path_factory.mktemp("docs") / "site"
    assert build(folder, jobs="1") == 0, "Sphinx printed a warning"
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """The text of every page, by its path."""
    return {path.relative_to(site).as_posix(): path.read_text() for path in sorted(site.rglob("*.html"))}


@pytest.fixture(autouse=True, scope="module")
def loggers_of_sphinx():
    """Enable the loggers of Sphinx: a command in this process disables all (Hydra's `job_logging=disabled`)."""
    for name in [name for name in logging.Logger.manager.loggerDict if name.startswith("sphinx")]:
        logging.getLogger(name).disabled = False


BROKEN = {
    "[a link](nowhere.md)": "nowhere.md",
    "[an anchor](index.md#nowhere)": "'nowhere'",
    "![a picture](nowhere.png)": "nowhere.png",
    "{py:obj}`models.nowhere.Nothing`": "models.nowhere.Nothing",
}


def test_a_broken_reference_ends_the_build(tmp_path, capfd):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Welcome\n\n```{toctree}\npage\n```\n")
    (tmp_path / "docs/page.md").write_text("# Page\n\n[the index](index.md#welcome)\n")
    assert render(tmp_path / "docs", tmp_path / "site", tmp_path / "trees", jobs="1") == 0
    (tmp_path / "docs/page.md").write_text("# Page\n\n" + "\n\n".join(BROKEN))
    (tmp_path / "docs/lost.md").write_text("# A page without navigation\n")
    assert render(tmp_path / "docs", tmp_path / "site", tmp_path / "trees", jobs="1") == 1
    warnings = capfd.readouterr().err
    assert [text for text in [*BROKEN.values(), "included in any toctree"] if text not in warnings] == []


def leaves(node, name=""):
    """The dotted names of all options of a composed configuration that are no mapping."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            if not str(key).startswith("_"):
                yield from leaves(value, f"{name}.{key}" if name else key)
    else:
        yield name


def codes(page):
    """All texts in code marks of a page."""
    return {html.unescape(re.sub(r"<[^>]+>", "", text)) for text in re.findall(r"<code[^>]*>(.*?)</code>", page)}


@pytest.mark.long
def test_every_option_of_a_verb_has_an_entry(pages):
    """Hydra composes the names; the site has them on the page of the verb or of the group."""
    of_groups = set().union(*(codes(pages[f"reference/options/{group}.html"]) for group in option_pages.GROUPS))
    for verb in deepweather.VERBS:
        plain = yaml.safe_load(OmegaConf.to_yaml(composed(verb, [])))
        shown = of_groups | codes(pages[f"reference/options/{verb}.html"])
        assert [name for name in leaves(plain) if name not in shown and not within(name, shown)] == [], verb


def within(name, shown):
    """Whether an option that holds a mapping, such as a routing, has an entry as a whole."""
    parts = name.split(".")
    return any(".".join(parts[:k]) in shown for k in range(2, len(parts)))


def test_an_option_without_a_meaning_is_an_error(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text(
        "# Some options.\n\nwidth: 3  # of a layer\n# in cells\n\n# about what follows\ndepth: [1, 2]\nrate: '#'\n"
    )
    file = read_option_file(path)
    assert [(o.name, o.default, o.meaning) for o in file.options] == [
        ("width", "3", "of a layer in cells"), ("depth", "[1, 2]", ""), ("rate", "'#'", "")
    ]  # fmt: skip
    with pytest.raises(
        InputError, match=r"^2 options have no meaning: .*some.yaml: depth; .*some.yaml: rate; write it as a"
    ):
        option_pages.refuse_without_meaning([file])


@pytest.mark.long
def test_every_public_name_has_an_entry(pages):
    """Classes and functions of the modules, found by Python's own parser."""
    for page, (_, patterns) in SECTIONS.items():
        found = set(ID.findall(pages[f"reference/python/{page}.html"]))
        for module in (module for pattern in patterns for module in modules_of(pattern)):
            tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())
            for node in tree.body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                    assert f"{module}.{node.name}" in found


@pytest.mark.long
def test_every_name_of_the_door_has_an_entry(pages):
    """With every parameter of its signature."""
    page = pages["reference/python/door.html"]
    entries = dict(re.findall(r'<dt class="sig [^>]*id="([\w.]+)">(.*?)</dt>', page, re.DOTALL))
    for name in deepweather.NAMES:
        shown = html.unescape(re.sub(r"<[^>]+>", "", entries[f"deepweather.{name}"]))
        found = getattr(deepweather, name)
        if inspect.isfunction(found):
            assert all(parameter in shown for parameter in inspect.signature(found).parameters)


@pytest.mark.long
def test_no_page_loads_anything_from_another_place(pages):
    """Links may lead away; scripts, styles, pictures and fonts may not come from elsewhere."""
    loads = r'<(?:script|img|iframe|source|video|audio)[^>]*\ssrc="(https?:[^"]*)"|<link[^>]*\shref="(https?:[^"]*)"'
    assert not {page: found for page, text in pages.items() if (found := re.findall(loads, text))}


@pytest.mark.long
@pytest.mark.parametrize(("name", "scheme"), list(zip(SHOWN, 3 * ("light", "dark"), strict=True)))
def test_a_page_fits_a_phone_is_silent_and_has_no_barriers(browser, site, name, scheme):
    """Only boxes that scroll by themselves, such as wide tables, may be wider than the window."""
    browser.page(site / name, 390, scheme).check_look(390, alone=False)
