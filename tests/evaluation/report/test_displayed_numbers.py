"""Every number in tables and figures equals one that is computed with NumPy from the archive's arrays.

The coefficients of the correctors are set, not fitted.
"""

import json
import math
import re
from statistics import NormalDist

import numpy as np
import pytest
import torch
from map_pixels import globe_values
from memory_archive import GRID, MemoryArchive, evaluating, untrained_emos

from data_pipeline.dates import Dates
from data_pipeline.task import Variable
from evaluation.report.figures import draw_figures
from evaluation.report.score_tables import headline_table
from evaluation.report.tables import plain_table
from models.provenance.training_dates import state_fits

LAWS = {"emos": (0.6, 1.0, 1.0), "net": (0.9, 0.9, 0.8), "wrong": (-0.5, 1.5, 0.5)}
"""Correctors: the shift of the ensemble mean, and a, b of the variance a² + b² s²."""
AREA = np.broadcast_to(np.array(GRID.weights)[:, None], GRID.shape)
LATITUDE = np.broadcast_to(np.array(GRID.latitudes)[:, None], GRID.shape)
LAND = np.broadcast_to(np.arange(12) % 2, GRID.shape)
REGIONS = {
    "global": AREA, "north": AREA * (LATITUDE >= 20), "tropics": AREA * (abs(LATITUDE) < 20),
    "south": AREA * (LATITUDE <= -20), "europe": AREA * (LATITUDE == 60) * np.isin(range(12), (0, 1)),
    "land": AREA * LAND, "sea": AREA * (1 - LAND),
}  # fmt: skip


class ExpectedScores:
    """Scores by definition in every cell (date, H, W), for the 20 starts of 2016, 48 h ahead."""

    def __init__(self, archive):
        of_2016 = archive.starts.astype("datetime64[Y]").astype(int) == 46
        self.starts = archive.starts[of_2016]
        # Samples are read in single precision.
        self.members = archive.raw[of_2016, 1].astype(np.float32).astype(float).transpose(1, 0, 2, 3)
        self.truth = archive.truth[of_2016, 1].astype(np.float32).astype(float)
        nature = archive.oracle.ensemble_fields([Variable("2t")], (48,))
        values = nature.reader.values[nature.cells[:, 0, :, 0]]
        self.oracle = values.astype(np.float32).astype(float).transpose(1, 0, 2, 3)
        mean, variance = self.members.mean(0), self.members.var(0, ddof=1)
        self.law = {name: (mean + shift, np.sqrt(a * a + b * b * variance)) for name, (shift, a, b) in LAWS.items()}
        self.crps = {"raw": plain_crps(self.members, self.truth)}
        self.fair = {"raw": fair_crps(self.members, self.truth), "oracle": fair_crps(self.oracle, self.truth)}
        for name, law in self.law.items():
            self.crps[name] = self.fair[name] = normal_crps(*law, self.truth)
        self.error = {"raw": mean - self.truth} | {name: mu - self.truth for name, (mu, _) in self.law.items()}
        self.variance = {"raw": variance * 6 / 5} | {name: sigma**2 for name, (_, sigma) in self.law.items()}
        levels = [NormalDist().inv_cdf((k + 0.5) / 5) for k in range(5)]
        written = {name: np.stack([mu + sigma * z for z in levels]) for name, (mu, sigma) in self.law.items()}
        self.written = {name: plain_crps(members, self.truth) for name, members in written.items()}
        self.written_ratio = {
            name: math.sqrt(global_mean(members.var(0, ddof=1)) / global_mean((members.mean(0) - self.truth) ** 2))
            for name, members in written.items()
        }

    def skill(self, name, against="raw", kind="fair", weights=AREA, rows=slice(None)):
        values = getattr(self, kind)
        return 1 - global_mean(values[name][rows], weights) / global_mean(values[against][rows], weights)

    def captured(self, name, kind="fair"):
        values = getattr(self, kind)
        return (global_mean(values["raw"]) - global_mean(values[name])) / (
            global_mean(values["raw"]) - global_mean(self.fair["oracle"])
        )

    def ratio(self, name, weights=AREA):
        return math.sqrt(global_mean(self.variance[name], weights) / global_mean(self.error[name] ** 2, weights))


def global_mean(values, weights=AREA):
    return float(np.average(values.mean(0), weights=weights))


def sum_of_distances(members):
    return sum(abs(a - b) for a in members for b in members)


def plain_crps(members, truth):
    M = len(members)
    return abs(members - truth).mean(0) - sum_of_distances(members) / (2 * M * M)


def fair_crps(members, truth):
    M = len(members)
    return abs(members - truth).mean(0) - sum_of_distances(members) / (2 * M * (M - 1))


def normal_crps(mu, sigma, truth):
    """CRPS of the normal law (Gneiting et al. 2005, equation 5)."""
    z = (truth - mu) / sigma
    cdf = 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    return sigma * (z * (2 * cdf - 1) + 2 * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) - 1 / math.sqrt(math.pi))


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The expected scores of the archive, and the target of the report that `evaluate` computes from it."""
    folder, archive = tmp_path_factory.mktemp("reader"), MemoryArchive()
    paths, caught = [], {}
    for name, (shift, a, b) in LAWS.items():
        corrector, _ = untrained_emos(archive, seasonal=False)
        state_fits(corrector.provenance, dict.fromkeys(corrector.fitted_parts, Dates.of_years([2014])))
        with torch.no_grad():
            corrector.model.coefficients.copy_(torch.tensor([shift, 1, a, b]).view(1, 4, 1, 1, 1))
        corrector.save(folder / f"{name}.safetensors")
        paths.append(f"{name}: {folder}/{name}.safetensors")
    with evaluating(archive) as run, pytest.MonkeyPatch.context() as patch:
        patch.setattr("evaluation.report.page.write_report", lambda _, targets, run: caught.update(target=targets[0]))
        run(folder / "run", f"correctors={{{', '.join(paths)}}}")
    assert json.loads((folder / "run/scores.json").read_text()) == caught["target"].scores
    return ExpectedScores(archive), caught["target"]


@pytest.fixture(scope="module")
def numbers(evaluated):
    return evaluated[0]


@pytest.fixture(scope="module")
def scores(evaluated):
    return evaluated[1].scores


@pytest.fixture(scope="module")
def pictures(evaluated):
    return draw_figures(evaluated[1])


def title_of(panel):
    return panel.figure.texts[0].get_text() if panel.figure.texts else ""


def column(drawing, key):
    return np.array(drawing.numbers[key], float)


def written_map(drawing, name):
    """The field (H, W) of a map in its CSV."""
    rows = np.array(drawing.numbers["field"]) == name
    return np.stack([drawing.numbers[f"{longitude:g}"][rows] for longitude in GRID.longitudes], 1)


def assert_close(found, expected):
    """Compare to single precision of values of 280 K, relative to their errors of about 1 K."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-4 * np.abs(expected).max())


def test_the_shown_model_has_the_lowest_crps(numbers, scores):
    lowest = min(LAWS, key=lambda name: global_mean(numbers.fair[name]))
    assert scores["best"] == {"model": lowest, "by": "scored years"}
    assert lowest == "net"


def expected_maps(numbers):
    """The fields of each map by the titles of its panels, the limits of its colours, and the label of their bar."""
    raw = numbers.fair["raw"].mean(0)
    plain, two = numbers.crps["raw"].mean(0), ("raw", "net")
    gain = {name: 100 * (1 - numbers.fair[name].mean(0) / raw) for name in numbers.fair if name in LAWS}
    bias = {name: numbers.error[name].mean(0) for name in two}
    ratio = {name: np.sqrt(numbers.variance[name].mean(0) / (numbers.error[name] ** 2).mean(0)) for name in two}

    def end(*fields):
        return np.quantile(np.abs(fields), 0.98)

    ends = [-end(*gain.values()), end(*gain.values())]
    largest, furthest = end(*bias.values()), np.exp(end(*np.log(list(ratio.values()))))
    return {
        "crps_raw": ({"": plain}, np.quantile(plain, [0.01, 0.99]), "plain CRPS of the raw ensemble (K)"),
        "improvement": ({"": gain.pop("net")}, ends, "fair CRPS below raw (%)"),
        "improvement_others": (gain, ends, "fair CRPS below raw (%)"),
        "bias": (bias, [-largest, largest], "mean forecast − analysis (K)"),
        "spread_error_map": (ratio, [1 / furthest, furthest], "spread / error"),
    }


@pytest.mark.parametrize("name", ["crps_raw", "improvement", "improvement_others", "bias", "spread_error_map"])
def test_maps_show_averages_of_every_cell(numbers, pictures, name):
    fields, expected, label = expected_maps(numbers)[name]
    drawing = pictures[name]
    assert [title_of(panel) for panel in drawing.panels] == list(fields)
    for panel, (title, field) in zip(drawing.panels, fields.items(), strict=True):
        values, _, limits = globe_values(panel, GRID)
        assert_close(values, field)
        assert_close(written_map(drawing, title or {"improvement": "net"}.get(name, name)), field)
        assert_close(limits, np.array(expected))
        assert panel.figure.axes[1].get_xlabel() == label


def test_the_colours_of_maps_have_their_meaning(pictures):
    """High errors are dark; improvement is green, deterioration brown; too high or too wide is red."""
    ends = {}
    for name in ("crps_raw", "improvement", "bias", "spread_error_map"):
        colours = pictures[name].panels[0].figure.axes[0].images[0].get_cmap()
        ends[name] = [colours(end)[:3] for end in (0.0, 1.0)]
    assert sum(ends["crps_raw"][1]) < sum(ends["crps_raw"][0])
    (worse, _, _), (better, green, _) = ends["improvement"]
    assert better < green
    assert better < worse
    for name in ("bias", "spread_error_map"):
        (low_red, _, low_blue), (high_red, _, high_blue) = ends[name]
        assert high_red > high_blue
        assert low_blue > low_red


def gains_of_forecasts(numbers):
    """The gain of each start in K, and the starts with the best, the median and the worst."""
    gains = [global_mean(numbers.fair["raw"][[k]] - numbers.fair["net"][[k]]) for k in range(20)]
    order = np.argsort(gains)
    return {"best": order[-1], "median": order[(20 - 1) // 2], "worst": order[0]}


@pytest.mark.parametrize("name", ["best", "median", "worst"])
def test_a_case_is_the_forecast_of_its_rank(numbers, pictures, evaluated, name):
    row = int(gains_of_forecasts(numbers)[name])
    start = str(numbers.starts[row].astype("datetime64[D]").astype(object).strftime("%-d %B %Y"))
    case, drawing = evaluated[1].fields.cases[name], pictures[f"case_{name}"]
    assert case.valid.startswith(f"{start}, 00 UTC + 48 h")
    share = 100 * (1 - global_mean(numbers.fair["net"][[row]]) / global_mean(numbers.fair["raw"][[row]]))
    assert case.gain == pytest.approx(share, rel=1e-3, abs=1e-3)
    assert drawing.note.startswith(case.valid)
    assert f"{case.gain:.1f} %" in drawing.note
    mean = numbers.members.mean(0)[row]
    mu, sigma = (part[row] for part in numbers.law["net"])
    truth = numbers.truth[row]
    expected = {"analysis": truth, "raw − analysis": mean - truth, "net − analysis": mu - truth, "net spread": sigma}
    assert [title_of(panel) for panel in drawing.panels] == list(expected)
    shown = [globe_values(panel, GRID) for panel in drawing.panels]
    for (values, _, _), (title, field) in zip(shown, expected.items(), strict=True):
        np.testing.assert_allclose(values, field, rtol=0, atol=2e-4)
        np.testing.assert_allclose(written_map(drawing, title), field, rtol=0, atol=2e-4)
    limits = [shown[k][2] for k in (1, 2)]
    assert limits[0] == limits[1] == (-limits[0][1], limits[0][1])
    gain = (numbers.fair["raw"] - numbers.fair["net"])[row]
    order = np.argsort(gain.ravel())
    cells = {"largest gain": order[-1], "median gain": order[(gain.size - 1) // 2], "lowest gain": order[0]}
    assert {plume.choice: plume.cell for plume in case.plumes} == {
        choice: np.unravel_index(index, gain.shape) for choice, index in cells.items()
    }


def panels_by_title(drawing):
    return {panel.figure.axes[0].get_title(loc="left"): panel.figure.axes[0] for panel in drawing.panels}


def dots_by_model(ax):
    """Return the places of each model's dots along the axis of values by its name."""
    return {line.get_label(): line.get_xdata() for line in ax.lines if not line.get_label().startswith("_")}


def test_the_dots_of_the_skill_figure_show_the_skills(numbers, pictures):
    panels = panels_by_title(pictures["skill"])
    region, season = panels["Region"], panels["Season"]
    assert list(panels) == ["Region", "Season"]
    months = (numbers.starts + np.timedelta64(48, "h")).astype("datetime64[M]").astype(int) % 12
    names = np.array(["DJF", "DJF", *["MAM"] * 3, *["JJA"] * 3, *["SON"] * 3, "DJF"])[months]
    assert [label.get_text().lower() for label in region.get_yticklabels()] == list(REGIONS)
    assert [label.get_text() for label in season.get_yticklabels()] == list(dict.fromkeys(names))
    written = pictures["skill"].numbers
    for name in LAWS:
        expected = [100 * numbers.skill(name, weights=weights) for weights in REGIONS.values()]
        np.testing.assert_allclose(dots_by_model(region)[name], expected, atol=2e-3)
        keys = zip(written["by"], written["group"], written["model"], strict=True)
        mine = [k for k, key in enumerate(keys) if key[1] in REGIONS and key[::2] == ("region", name)]
        np.testing.assert_allclose(written["value"][mine], expected, atol=2e-3)
        assert (written["low"][mine] < written["value"][mine]).all()
        assert (written["value"][mine] < written["high"][mine]).all()
        expected = [100 * numbers.skill(name, rows=names == one) for one in dict.fromkeys(names)]
        np.testing.assert_allclose(dots_by_model(season)[name], expected, atol=2e-3)
    assert region.get_xlabel() == "fair CRPS below raw (%)"
    assert region.get_ylim()[0] > region.get_ylim()[1], "the first row is at the top"


def test_the_central_interval_of_members_is_between_the_outer_two(numbers, scores):
    inside = (numbers.members.min(0) < numbers.truth) & (numbers.truth < numbers.members.max(0))
    found = scores["models"]["raw"]["central_interval"]
    assert found["nominal"] == pytest.approx(4 / 6)
    assert found["held"] == pytest.approx(global_mean(inside))
    assert found["ci95"][0] < found["held"] < found["ci95"][1]


def parse_number(text):
    """Return the number in a cell, and half a unit of its last digit."""
    digits = text.strip().replace("−", "-").removesuffix("%").strip()
    return float(digits), 0.5001 * 10 ** -len(digits.partition(".")[2])


def assert_shows(text, expected):
    found, half = parse_number(text)
    assert found == pytest.approx(expected, abs=half + 2e-5 * abs(expected)), text


def expected_cells(numbers, name):
    """Return the numbers that the tables must show for a model, by column heading."""
    own = {"plain CRPS": global_mean(numbers.crps[name]), "fair CRPS": global_mean(numbers.fair[name])}
    own |= {"RMSE": math.sqrt(global_mean(numbers.error[name] ** 2)), "bias": global_mean(numbers.error[name])}
    own["spread / error"] = numbers.ratio(name)
    for other, shown in {"raw": "raw", "emos": "EMOS"}.items():
        if other != name:
            own[f"vs {shown}, fair"] = 100 * numbers.skill(name, other)
    if name != "raw":
        own["vs raw, plain"] = 100 * numbers.skill(name, "raw", "crps")
        own |= {"captured, fair": 100 * numbers.captured(name), "captured, plain": 100 * numbers.captured(name, "crps")}
    return own


def without_intervals(table):
    """The headings and the rows of a table."""
    return [[re.sub(r" \[.*", "", cell) for cell in row] for row in [table.columns, *table.rows]]


def test_the_table_of_the_report_shows_the_numbers(numbers, scores):
    table = headline_table(scores)
    head, *rows = without_intervals(table)
    written = {row[0].removesuffix(" as 5 members"): row for row in rows if row[0].endswith(" as 5 members")}
    rows = [row for row in rows if row[0] not in {one[0] for one in written.values()}]
    assert [row[0] for row in rows] == ["raw", "climatology", *LAWS, "oracle"]
    by_name = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    for name in ("raw", *LAWS):
        expected = expected_cells(numbers, name)
        shown = {c: cell for c, cell in by_name[name].items() if c != "model" and "climatology" not in c}
        assert {c for c, cell in shown.items() if cell != "–"} == set(expected)
        for column, number in expected.items():
            assert_shows(shown[column], number)
    assert_shows(by_name["oracle"]["fair CRPS"], global_mean(numbers.fair["oracle"]))
    assert_shows(by_name["oracle"]["plain CRPS"], global_mean(plain_crps(numbers.oracle, numbers.truth)))
    assert list(written) == list(LAWS)
    for name, row in written.items():
        cells = {column: cell for column, cell in zip(head, row, strict=True) if cell != "–" and column != "model"}
        expected = {column: value for column, value in expected_cells(numbers, name).items() if column in cells}
        expected |= {"plain CRPS": global_mean(numbers.written[name]), "spread / error": numbers.written_ratio[name]}
        expected["vs raw, plain"] = 100 * (1 - expected["plain CRPS"] / global_mean(numbers.crps["raw"]))
        assert set(cells) == set(expected) == {"plain CRPS", "vs raw, plain", "RMSE", "bias", "spread / error"}
        for column, number in expected.items():
            assert_shows(cells[column], number)
    for row in table.rows:
        for cell in row[1:]:
            if "[" in cell:
                value, low, high = (parse_number(text)[0] for text in re.split(r"[\[,]", cell.removesuffix("]")))
                assert low <= value <= high, row


def test_the_table_of_the_terminal_shows_the_numbers(numbers, scores):
    _, head, *lines = plain_table(scores).splitlines()
    assert head.split("  ")[0] == "model"
    assert re.split(" {2,}", head)[1:] == [
        "CRPS", "fair", "vs raw, fair [95 %]", "plain", "vs EMOS, fair [95 %]", "captured", "plain", "spread/error",
        "members",
    ]  # fmt: skip
    rows = {line.split()[0]: re.findall(r"[+−]?[\d.]+", re.sub(r"\[[^]]*\]", "", line)) for line in lines}
    for name in ("raw", *LAWS):
        itself = ("captured, fair", "captured, plain", "vs raw, fair", "vs raw, plain", "vs EMOS, fair")
        own = dict.fromkeys(itself, 0.0) | expected_cells(numbers, name)
        columns = ["plain CRPS", "fair CRPS", "vs raw, fair", "vs raw, plain", "vs EMOS, fair", "captured, fair"]
        expected = [own[column] for column in (*columns, "captured, plain", "spread / error")]
        expected += [numbers.written_ratio[name]] if name in LAWS else []
        for cell, number in zip(rows[name], expected, strict=True):
            assert_shows(cell, number)
