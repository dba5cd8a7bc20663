"""The report in a browser: every width, light and dark, on paper, by keyboard, with and without scripts."""

import json
import re
import shutil

import numpy as np
import pytest
from browser import CHROMIUM, PAPER, Browser
from memory_archive import MemoryArchive, evaluating
from report_parts import MODELS, make_scores, text_of

from evaluation.report.page import page
from evaluation.report.series import default_series, entry_of, list_series, list_slices, slice_title

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; Debian: apt-get install chromium")
READY = "document.querySelector('#chart svg')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chromium")
    one = Browser(folder)
    yield one
    one.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of `evaluate` with all its figures."""
    folder = tmp_path_factory.mktemp("report")
    with evaluating(MemoryArchive()) as run:
        run(folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def scores():
    return make_scores()


@pytest.fixture(scope="module")
def written(scores, tmp_path_factory):
    """A page of scores that are all different."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(scores))
    return path


@pytest.fixture(scope="module")
def opened(browser, written):
    return browser.page(written)


def choose(shown, control, value):
    """Choose an option as a person does, with the event that the browser sends then."""
    script = "e => { e.value = %s; e.dispatchEvent(new Event('change', {bubbles: true})); return e.value; }"
    assert shown.run(f"({script % json.dumps(value)})(document.getElementById('{control}'))") == value


def overflow(shown):
    """The elements that stick out of the window, and are not inside a frame that scrolls."""
    return shown.run("""[...document.querySelectorAll('body *')].filter(e => {
        const box = e.getBoundingClientRect();
        return box.width && box.right > innerWidth + 1 && !e.closest('.scroll');
    }).map(e => e.tagName + ' ' + e.id + ' ' + e.className)""")


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (768, "dark"), (1280, "light"), (1280, "dark")])
def test_the_page_fits_and_is_silent(browser, report, width, scheme):
    shown = browser.page(report, width, scheme)
    shown.wait_until(READY)
    shown.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    shown.check_look(width)
    assert overflow(shown) == []
    background = {"light": "rgb(252, 252, 250)", "dark": "rgb(20, 23, 27)"}[scheme]
    assert shown.run("getComputedStyle(document.body).backgroundColor") == background


def test_without_scripts_everything_is_readable(browser, written, scores):
    shown = browser.page(written, 390, scripts=False)
    text = shown.run("document.body.innerText")
    tables = text.split("starts\n")[1:]
    shown_first = default_series(scores)
    for kind, labels in list_slices(scores).items():
        for label in labels if kind != "all" else ():
            for name in ("emos", "net <1>"):
                cell = text_of(shown_first.cell(entry_of(scores, name, kind, label)))
                assert any(cell in shown_text(table) for table in tables), (kind, label, name)
    assert shown.run("document.querySelector('[data-script]').hidden")
    assert not shown.run("document.querySelector('[data-static]').hidden")
    assert shown.run("document.documentElement.scrollWidth") <= 390


def test_on_paper_nothing_is_cut_off(browser, report):
    shown = browser.page(report, PAPER)
    shown.emulate("print")
    assert overflow(shown) == []
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert shown.run(cut) == 0
    hidden = "[...document.querySelectorAll('nav, .controls')].every(e => !e.getBoundingClientRect().height)"
    assert shown.run(hidden)
    tables = "[...document.querySelectorAll('details table')]"
    assert shown.run(f"{tables}.every(e => e.checkVisibility({{contentVisibilityAuto: true}}))")
    assert shown.pdf().startswith(b"%PDF")


def shown_text(cell):
    return re.sub(r"\s+", " ", cell).strip()


def test_every_slice_shows_its_numbers_in_the_tables(opened, scores):
    series = {one.key: one for one in list_series(scores)}
    read = (
        "[...document.querySelectorAll('td[data-series]')].map(e => [e.dataset.series, e.dataset.model, e.textContent])"
    )
    whole = opened.run(read)
    for kind, labels in list_slices(scores).items():
        for label in labels:
            choose(opened, "slice", f"{kind}|{label}")
            found = opened.run(read)
            assert len(found) == len(whole) > 60
            for key, model, text in found:
                expected = text_of(series[key].cell(entry_of(scores, model, kind, label)))
                assert shown_text(text) == expected, (kind, label, key, model)
            if kind != "all":
                size = scores["slices"][kind][label]
                text = f"{size['n_dates']:,} starts, {size['n_forecasts']:,} forecasts, {size['cells']:,} cells"
                assert opened.run("document.getElementById('sample').textContent") == text
    choose(opened, "slice", "all|all")
    assert opened.run(read) == whole


def test_every_score_is_shown_by_every_kind_of_slice(opened, scores):
    slices = {kind: labels for kind, labels in list_slices(scores).items() if kind != "all"}
    assert opened.run("[...document.getElementById('kind').options].map(e => e.value)") == list(slices)
    opened.run("document.querySelectorAll('#models input').forEach(e => { if (!e.checked) e.click(); })")
    for series in list_series(scores):
        choose(opened, "score", series.key)
        for kind, labels in slices.items():
            choose(opened, "kind", kind)
            head, *rows = opened.run(
                "[...document.querySelectorAll('#explored tr')].map(r => [...r.children].map(e => e.textContent))"
            )
            assert head[1:] == [*MODELS, "starts"]
            assert [row[0] for row in rows] == [slice_title(kind, label) for label in labels]
            for label, row in zip(labels, rows, strict=True):
                assert row[-1] == f"{scores['slices'][kind][label]['n_dates']:,}"
                for model, text in zip(MODELS, row[1:-1], strict=True):
                    entry = entry_of(scores, model, kind, label)
                    expected = "–" if series.leaves_out(model) else text_of(series.cell(entry))
                    assert shown_text(text) == expected, (series.key, kind, label, model)


def test_the_chart_draws_numbers_and_intervals_to_scale(opened, scores):
    """Places of dots and ends of intervals are one linear function of their numbers."""
    series = next(one for one in list_series(scores) if one.key == "skill_vs_emos_fair")
    choose(opened, "score", series.key)
    for kind, axis in (("season", "x"), ("lead", "y")):
        choose(opened, "kind", kind)
        drawn = opened.run(
            """[...document.querySelectorAll('#chart g')].map(g => [
            [...g.querySelectorAll('circle')].map(e => +e.getAttribute('cAXIS')),
            [...g.querySelectorAll('line')].map(e => [+e.getAttribute('AXIS1'), +e.getAttribute('AXIS2')]),
        ])""".replace("AXIS", axis)
        )
        dots = np.concatenate([circles for circles, _ in drawn])
        ends = np.concatenate([lines for _, lines in drawn if lines])
        models = [name for name in MODELS if name != "emos"]
        labels = list_slices(scores)[kind]
        order = [(name, label) for label in labels for name in models]
        if kind == "lead":
            order = [(name, label) for name in models for label in labels]
        numbers = [series.of(entry_of(scores, name, kind, label)) for name, label in order]
        values, intervals = np.array([value for value, _ in numbers]), np.array([ends for _, ends in numbers])
        slope, start = np.polyfit(values, dots, 1)
        assert (slope > 0) == (axis == "x")
        np.testing.assert_allclose(dots, start + slope * values, atol=0.02)
        np.testing.assert_allclose(ends, start + slope * intervals, atol=0.02)


def test_a_model_that_is_not_chosen_is_not_shown(opened):
    choose(opened, "kind", "season")
    count = "document.querySelectorAll('#chart g').length"
    before = opened.run(count)
    opened.run("document.querySelector('#models input[value=raw]').click()")
    assert opened.run(count) == before - 2
    assert "raw" not in opened.run("[...document.querySelectorAll('#explored thead th')].map(e => e.textContent)")
    opened.run("document.querySelector('#models input[value=raw]').click()")


def test_controls_work_by_keyboard(browser, written):
    shown = browser.page(written)
    shown.wait_until(READY)
    shown.run("document.getElementById('slice').focus()")
    shown.press("ArrowDown", 40)
    assert shown.run("document.getElementById('slice').value") == "lead|24"
    assert shown.run("document.getElementById('sample').textContent") != ""
    visited = set()
    for _ in range(60):
        shown.press("Tab", 9)
        visited.add(shown.run("document.activeElement.id || document.activeElement.value || ''"))
    assert {"score", "kind", *MODELS} <= visited
    assert shown.complaints() == []
