"""The report in a browser: every width, light and dark, on paper."""

import pytest
from browser import PAPER


@pytest.fixture
def report(written):
    return written[0] / "report.html"


def overflow(shown):
    """The elements that stick out of the window, and are not inside a frame that scrolls."""
    return shown.run("""[...document.querySelectorAll('body *')].filter(e => {
        const box = e.getBoundingClientRect();
        return box.width && box.right > innerWidth + 1 && !e.closest('.scroll');
    }).map(e => e.tagName + ' ' + e.id + ' ' + e.className)""")


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (768, "dark"), (1280, "light")])
def test_the_page_fits_and_is_silent(browser, report, width, scheme):
    shown = browser.page(report, width, scheme)
    shown.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    shown.check_look(width)
    assert overflow(shown) == []
    background = {"light": "rgb(252, 252, 250)", "dark": "rgb(20, 23, 27)"}[scheme]
    assert shown.run("getComputedStyle(document.body).backgroundColor") == background


def test_on_paper_nothing_is_cut_off(browser, report):
    shown = browser.page(report, PAPER)
    shown.emulate("print")
    assert overflow(shown) == []
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert shown.run(cut) == 0
    hidden = "[...document.querySelectorAll('nav, .more')].every(e => !e.getBoundingClientRect().height)"
    assert shown.run(hidden)
    tables = "[...document.querySelectorAll('details:not(.more, .more details) table')]"
    assert shown.run(f"{tables}.every(e => e.checkVisibility({{contentVisibilityAuto: true}}))")
    assert shown.pdf().startswith(b"%PDF")
