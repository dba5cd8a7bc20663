"""The page of an explanation: its numbers by another road, and its look in Chromium."""

import re
from dataclasses import replace

import numpy as np
import pytest
from browser import PAPER
from explained_forecast import CHANNELS, GRID, SCALE, WEIGHTS, WIDER, make_climate, make_forecast, predict_linear
from report_parts import tables_of

from data_pipeline.grids.points import Points
from data_pipeline.task import Variable
from evaluation.explanation.explanation_page import explanation_page
from evaluation.explanation.explanation_tables import ExplainedCorrector
from evaluation.explanation.forecast_explanation import explain_forecast
from evaluation.report.maps import Coast
from evaluation.report.shown_data import ExpertMap

AREA = np.broadcast_to(np.asarray(GRID.weights)[:, None], GRID.shape)
LEADS, USUAL = (24, 48), 0.25


def explained(grid=GRID, name="net <1>", **more):
    climate = make_climate(grid)
    predict = predict_linear(climate, USUAL)
    forecasts = tuple(
        explain_forecast(predict, make_forecast(climate, lead, seed=lead), grid, CHANNELS, (0,), climate)
        for lead in LEADS
    )
    return ExplainedCorrector(name, (Variable.parse("2t"),), Coast(grid, None, True), forecasts, 7, ("K",), **more)


@pytest.fixture(scope="module")
def corrector():
    experts = ExpertMap("body.2", 3, np.arange(np.prod(GRID.shape)).reshape(GRID.shape) % 3)
    return explained(experts=experts, problems=("msl is <above> the training range",), about={"sha256": "01ab"})


@pytest.fixture(scope="module")
def written(corrector, tmp_path_factory):
    path = tmp_path_factory.mktemp("explanation") / "out.explain.html"
    path.write_text(explanation_page([corrector], "out.grib", {"Input": "in & more.grib"}))
    return path


def number(text):
    return float(text.replace("−", "-").split()[0])


def root_mean_square(field):
    known = np.isfinite(field)
    return float((AREA * field**2)[known].sum() / AREA[known].sum()) ** 0.5


def truth(lead):
    """Change of the mean, and the term of each channel, (H, W), NaN in the missing cell."""
    climate = make_climate()
    forecast = make_forecast(climate, lead, seed=lead)
    departure = forecast.ensemble.astype(float).mean(0) - climate.location
    terms = np.where(forecast.mask, WEIGHTS[:, None, None] * departure, np.nan)
    return USUAL + terms.sum(0), terms, np.where(forecast.mask, departure, np.nan) / SCALE[:, None, None]


def test_the_summary_has_the_numbers_of_the_model(written):
    _, *rows = tables_of(written.read_text())[0]
    assert len(rows) == len(LEADS)
    for lead, row in zip(LEADS, rows, strict=True):
        change, terms, _ = truth(lead)
        assert row[:2] == ["2t", f"23 Nov 00 UTC +{lead} h"]
        expected = [
            root_mean_square(change), np.average(change.ravel()[1:], weights=AREA.ravel()[1:]),
            change.ravel()[np.nanargmax(abs(change))], USUAL, root_mean_square(terms.sum(0)), WIDER,
        ]  # fmt: skip
        assert [number(cell) for cell in row[2:8]] == pytest.approx(expected, abs=0.0051)


def test_the_inputs_are_listed_by_their_parts(written):
    text = written.read_text()
    for lead, table in zip(LEADS, tables_of(text)[2::2], strict=True):
        _, terms, departure = truth(lead)
        sizes = {name: root_mean_square(term) for name, term in zip(CHANNELS, terms, strict=True)}
        assert [row[0] for row in table[1:]] == sorted(sizes, key=lambda name: -sizes[name])
        for row in table[1:]:
            mine = departure[CHANNELS.index(row[0])]
            expected = [sizes[row[0]], 0, root_mean_square(mine), mine.ravel()[np.nanargmax(abs(mine))]]
            assert [number(cell) for cell in row[1:5]] == pytest.approx(expected, abs=0.051)
            assert number(row[1]) == pytest.approx(sizes[row[0]], abs=0.0051)


def test_the_largest_changes_name_the_input_that_causes_them(written):
    change, terms, _ = truth(LEADS[0])
    places = tables_of(written.read_text())[1][1:]
    row = places[0]
    cell = np.unravel_index(int(np.nanargmax(abs(change))), change.shape)
    assert number(row[3]) == pytest.approx(change[cell], abs=0.0051)
    assert number(row[2]) - number(row[1]) == pytest.approx(change[cell], abs=0.011)
    strongest = int(np.argmax([abs(term[cell]) for term in terms]))
    assert row[-2].startswith(f"{CHANNELS[strongest]} (")
    assert len(places) == 8


def test_the_page_says_how_many_forecasts_it_explains_and_shows_all_texts_as_text(written):
    text = written.read_text()
    assert "2 of 7 corrected forecasts are explained" in text
    for part in ("net &lt;1&gt;", "msl is &lt;above&gt; the training range", "in &amp; more.grib", "01ab", "body.2"):
        assert part in text
    assert not re.findall(r"<(?:1|above)>|\{[{%]", text)


@pytest.fixture(scope="module")
def at_stations():
    """An explanation at nine stations, which have no maps."""
    places = np.linspace(-60, 60, 9), np.linspace(0, 80, 9)
    return explained(Points(*map(tuple, places), ids=tuple("abcdefghi")), "emos")


def test_unusual_inputs_are_warnings(at_stations):
    first, *others = at_stations.forecasts
    moved = first.copy(deep=True)
    moved.departure[1], moved.largest_cell[1] = 2.25, 1
    text = explanation_page([replace(at_stations, forecasts=(moved, *others))], "out.grib", {})
    (warning,) = re.findall('<p class="warning">(.*?)</p>', text)
    assert warning.startswith("t@850 is unusual at +24 h: its departure from the training mean is 2.2 times a typical")
    assert warning.endswith("largest at b, 45°S 10°E")


def test_stations_have_tables_and_no_maps(at_stations):
    text = explanation_page([at_stations], "out.grib", {})
    assert 'class="warning"' not in text
    assert "<svg" not in text
    assert len(tables_of(text)) == 1 + 2 * len(LEADS)
    assert "b, 45°S 10°E" in text
    data = at_stations.data()
    assert (data.sizes["point"], list(data.station)) == (9, list("abcdefghi"))
    assert data.corrected_mean.dims == ("forecast", "target", "point")


def test_a_page_has_one_corrector_or_several_or_nothing_to_explain(corrector):
    text = explanation_page([corrector, explained(name="other")], "out.grib", {})
    assert "4 of 14 corrected forecasts are explained" in text
    assert len(tables_of(text)[0]) == 1 + 4
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    empty = ExplainedCorrector("net", (Variable.parse("2t"),), Coast(GRID), (), 0)
    assert "there is nothing to explain" in explanation_page([empty], "out.grib", {})
    assert empty.data().attrs["total"] == 0


def test_every_width_and_scheme_is_readable_and_on_paper_nothing_is_cut_off(browser, written):
    for width, scheme in ((390, "light"), (768, "dark"), (1280, "light")):
        shown = browser.page(written, width, scheme)
        shown.check_look(width)
        assert shown.run("document.querySelectorAll('svg').length") == 2 * 6 + 1
    shown = browser.page(written, PAPER)
    shown.emulate("print")
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert shown.run(cut) == 0
    assert shown.pdf().startswith(b"%PDF")
