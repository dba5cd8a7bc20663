"""Every number in tables and figures equals one that is computed with NumPy from the archive's arrays.

The coefficients of the correctors are set, not fitted.
"""

import json
import math
import re
import signal
import sys
from html.parser import HTMLParser
from statistics import NormalDist

import matplotlib
import numpy as np
import pytest
import torch
from memory_archive import GRID, MemoryArchive, overrides

from conf import build
from data_pipeline.dataset import ForecastDataset
from data_pipeline.task import Task, Variable
from evaluation import evaluate
from evaluation.report.figure_style import model_colours
from evaluation.report.figures import draw_figures
from evaluation.report.headline import headline
from evaluation.report.score_tables import html_table
from evaluation.report.tables import members_table, plain_table
from models.corrector import Corrector

LAWS = {"emos": (0.6, 1.0, 1.0), "net": (0.9, 0.9, 0.8), "wrong": (-0.5, 1.5, 0.5)}
"""Correctors: the shift of the ensemble mean, and a, b of the variance a² + b² s²."""
AREA = np.broadcast_to(np.array(GRID.weights)[:, None], GRID.shape)
LATITUDE = np.broadcast_to(np.array(GRID.latitudes)[:, None], GRID.shape)
LAND = np.broadcast_to(np.arange(12) % 2, GRID.shape)
REGIONS = {
    "global": AREA, "north": AREA * (LATITUDE >= 20), "tropics": AREA * (abs(LATITUDE) < 20),
    "south": AREA * (LATITUDE <= -20), "land": AREA * LAND, "sea": AREA * (1 - LAND),
}  # fmt: skip


class ExpectedScores:
    """Scores by definition in every cell (date, H, W), for the 20 starts of 2016, 48 h ahead."""

    def __init__(self, archive):
        of_2016 = archive.starts.astype("datetime64[Y]").astype(int) == 46
        self.starts = archive.starts[of_2016]
        # Samples are read in single precision.
        self.members = archive.raw[of_2016, 1].astype(np.float32).astype(float).transpose(1, 0, 2, 3)
        self.truth = archive.truth[of_2016, 1].astype(np.float32).astype(float)
        nature = archive.oracle.ensemble_fields([Variable("2t")], (48,)).values[:, 0].astype(np.float32).astype(float)
        self.oracle = nature.transpose(1, 0, 2, 3)
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
    """The expected scores of the archive, and the scores and fields that `evaluate` computes from it."""
    folder, archive = tmp_path_factory.mktemp("reader"), MemoryArchive()
    data = ForecastDataset(archive, Task("t2m", ["2t"], ["2t"], [48]), [2014])
    paths = []
    for name, (shift, a, b) in LAWS.items():
        spec = {"_target_": "models.statistical.emos.EMOS", "seasonal": False}
        provenance = {"train_years": [2014, 2014], "val_years": [2015, 2015], "members": 5}
        corrector = Corrector(data.task, GRID, spec, data.static, provenance)
        with torch.no_grad():
            corrector.model.coefficients.copy_(torch.tensor([shift, 1, a, b]).view(1, 4, 1, 1, 1))
        corrector.save(folder / f"{name}.safetensors")
        paths.append(f"{name}: {folder}/{name}.safetensors")
    caught = {}
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYDRA_FULL_ERROR", "0")
        patch.setattr(evaluate, "build", lambda node: archive if "ensemble" in node else build(node))
        patch.setattr(
            evaluate, "write_report", lambda _, scores, fields, run: caught.update(scores=scores, fields=fields)
        )
        options = overrides(folder / "run", f"correctors={{{', '.join(paths)}}}")
        patch.setattr(sys, "argv", ["evaluate", *options])
        evaluate.main()
    signal.signal(signal.SIGTERM, handler)
    assert json.loads((folder / "run/scores.json").read_text()) == caught["scores"]
    return ExpectedScores(archive), caught["scores"], caught["fields"]


@pytest.fixture(scope="module")
def numbers(evaluated):
    return evaluated[0]


@pytest.fixture(scope="module")
def scores(evaluated):
    return evaluated[1]


@pytest.fixture(scope="module")
def pictures(evaluated):
    return draw_figures(*evaluated[1:])


def map_values(ax):
    """Return the values (H, W) of a map at the longitudes where it shows them, and its colours and their limits."""
    mesh = ax.collections[0]
    edges = np.degrees(mesh.get_coordinates()[0, :, 0])
    middle = (edges[1:] + edges[:-1]) / 2
    inside = (middle >= -180 - 1e-6) & (middle < 180 - 1e-6)
    values = np.ma.getdata(mesh.get_array()).reshape(GRID.shape[0], -1)[:, inside]
    found = np.full(GRID.shape, np.nan)
    for value, longitude in zip(values.T, middle[inside], strict=True):
        found[:, round(longitude % 360 / 30) % 12] = value
    return found, mesh.get_cmap().name, mesh.get_clim()


def end_colours(colours):
    """Return red, green and blue of the lowest and of the highest value."""
    return [matplotlib.colormaps[colours](end)[:3] for end in (0.0, 1.0)]


def assert_close(found, expected):
    """Compare to single precision of values of 280 K, relative to their errors of about 1 K."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-4 * np.abs(expected).max())


def test_the_shown_model_has_the_lowest_crps(numbers, scores):
    lowest = min(LAWS, key=lambda name: global_mean(numbers.fair[name]))
    assert scores["best"] == {"model": lowest, "by": "scored years"}
    assert lowest == "net"


def test_the_map_of_the_raw_ensemble_shows_its_plain_crps(numbers, pictures):
    ax, bar = pictures["crps_raw"].axes
    values, colours, limits = map_values(ax)
    expected = numbers.crps["raw"].mean(0)
    assert_close(values, expected)
    assert sum(end_colours(colours)[1]) < sum(end_colours(colours)[0]), "high values are dark"
    assert_close(limits, np.quantile(expected, [0.01, 0.99]))
    assert bar.get_xlabel() == "CRPS of the raw ensemble (K)"


def test_the_map_of_improvement_is_positive_where_the_fair_crps_is_lower(numbers, pictures):
    ax, bar = pictures["improvement"].axes
    values, colours, limits = map_values(ax)
    raw, net = numbers.fair["raw"].mean(0), numbers.fair["net"].mean(0)
    assert_close(values, 100 * (1 - net / raw))
    clear = abs(net - raw) > 1e-3
    assert ((values > 0) == (net < raw))[clear].all()
    (worse, _, _), (better, green, _) = end_colours(colours)
    assert better < green, "improvement is green"
    assert better < worse, "deterioration is brown"
    end = np.quantile(abs(100 * (1 - net / raw)), 0.98)
    assert_close(limits, np.array([-end, end]))
    assert bar.get_xlabel() == "net: fair CRPS below raw (%)"


def test_the_maps_of_bias_share_a_scale(numbers, pictures):
    *axes, bar = pictures["bias"].axes
    expected = {name: numbers.error[name].mean(0) for name in ("raw", "net")}
    end = np.quantile(np.abs(np.stack(list(expected.values()))), 0.98)
    assert [ax.get_title(loc="left") for ax in axes] == list(expected)
    for ax, field in zip(axes, expected.values(), strict=True):
        values, colours, limits = map_values(ax)
        assert_close(values, field)
        (_, _, blue), (red, _, rest) = end_colours(colours)
        assert red > rest, "positive bias is red"
        assert blue > rest
        assert_close(limits, np.array([-end, end]))
    assert bar.get_xlabel() == "mean forecast − analysis (K)"


def test_the_example_is_the_median_forecast(numbers, pictures, evaluated):
    gains = [global_mean(numbers.fair["raw"][[k]] - numbers.fair["net"][[k]]) for k in range(20)]
    row = int(np.argsort(gains)[(20 - 1) // 2])
    start = str(numbers.starts[row].astype("datetime64[D]").astype(object).strftime("%-d %B %Y"))
    assert evaluated[2].example.valid.startswith(f"{start}, 00 UTC + 48 h")
    mean = numbers.members.mean(0)[row]
    mu, sigma = (part[row] for part in numbers.law["net"])
    truth = numbers.truth[row]
    expected = {
        "analysis": truth, "raw mean": mean, "net mean": mu, "raw − analysis": mean - truth,
        "net − analysis": mu - truth, "net spread": sigma,
    }  # fmt: skip
    axes = {
        ax.get_title(loc="left"): ax for ax in pictures["example"].axes if ax.collections and ax.name == "mollweide"
    }
    assert list(axes) == list(expected)
    for title, field in expected.items():
        np.testing.assert_allclose(map_values(axes[title])[0], field, rtol=0, atol=2e-4)
    limits = [map_values(axes[title])[2] for title in ("raw − analysis", "net − analysis")]
    assert limits[0] == limits[1] == (-limits[0][1], limits[0][1])


def test_the_bars_of_the_gain_show_the_captured_shares(numbers, scores, pictures):
    (ax,) = pictures["gain"].axes
    colours = model_colours(scores["models"])
    bars = [bar for bar in ax.patches if bar.get_width() != 100]
    assert [label.get_text() for label in ax.get_yticklabels()] == list(LAWS)
    diamonds = [line for line in ax.lines if line.get_marker() == "d"]
    intervals = [line for line in ax.lines if line.get_marker() == "None" and line.get_linewidth() == 1.4]
    for row, name in enumerate(LAWS):
        share = 100 * numbers.captured(name)
        assert bars[row].get_width() == pytest.approx(share, rel=1e-4)
        assert bars[row].get_x() == 0
        assert bars[row].get_y() + bars[row].get_height() / 2 == row
        assert "#{:02x}{:02x}{:02x}".format(*(round(255 * c) for c in bars[row].get_facecolor()[:3])) == colours[name]
        assert ax.texts[row].get_text() == f"{share:.0f} %"
        assert diamonds[row].get_xdata()[0] == pytest.approx(100 * numbers.captured(name, "crps"), rel=1e-4)
        low, high = intervals[row].get_xdata()
        assert low < share < high
    assert list(ax.get_xticks()) == [0, 25, 50, 75, 100]


def dots_by_model(ax):
    """Return the heights of each model's dots by its name."""
    return {line.get_label(): line.get_ydata() for line in ax.lines if line.get_marker() == "o"}


def test_the_dots_of_the_skill_figure_show_the_skills(numbers, pictures):
    region, season = pictures["skill"].axes
    months = (numbers.starts + np.timedelta64(48, "h")).astype("datetime64[M]").astype(int) % 12
    names = np.array(["DJF", "DJF", *["MAM"] * 3, *["JJA"] * 3, *["SON"] * 3, "DJF"])[months]
    assert [label.get_text() for label in region.get_xticklabels()] == list(REGIONS)
    assert [label.get_text() for label in season.get_xticklabels()] == list(dict.fromkeys(names))
    for name in LAWS:
        expected = [100 * numbers.skill(name, weights=weights) for weights in REGIONS.values()]
        np.testing.assert_allclose(dots_by_model(region)[name], expected, atol=2e-3)
        expected = [100 * numbers.skill(name, rows=names == one) for one in dict.fromkeys(names)]
        np.testing.assert_allclose(dots_by_model(season)[name], expected, atol=2e-3)
    assert region.get_ylabel() == "CRPS below raw (%)"


def test_the_dots_of_the_spread_figure_show_spread_over_error(numbers, pictures):
    (ax,) = pictures["spread"].axes
    assert [label.get_text() for label in ax.get_xticklabels()] == list(REGIONS)
    for name in ("raw", *LAWS):
        expected = [numbers.ratio(name, weights) for weights in REGIONS.values()]
        np.testing.assert_allclose(dots_by_model(ax)[name], expected, rtol=1e-4)


def test_the_bars_of_the_histograms_show_frequencies(numbers, pictures):
    panels = {ax.get_title(loc="left"): [bar.get_height() for bar in ax.patches] for ax in pictures["histograms"].axes}
    assert list(panels) == ["raw", *LAWS, "oracle"]
    weights = np.broadcast_to(AREA, numbers.truth.shape)

    def frequencies(index, bins):
        return np.bincount(index.ravel(), weights.ravel(), bins) / weights.sum() * bins

    ranks = (numbers.members < numbers.truth).sum(0)
    np.testing.assert_allclose(panels["raw"], frequencies(ranks, 6), rtol=1e-9)
    np.testing.assert_allclose(panels["oracle"], frequencies((numbers.oracle < numbers.truth).sum(0), 9), rtol=1e-9)
    cell = 2 * 6 * AREA.max() / weights.sum()  # single precision may move a cell from one bin to the next
    for name, (mu, sigma) in numbers.law.items():
        probability = 0.5 * (1 + np.vectorize(math.erf)((numbers.truth - mu) / sigma / math.sqrt(2)))
        np.testing.assert_allclose(panels[name], frequencies((probability * 6).astype(int), 6), atol=cell)


class TableCells(HTMLParser):
    """The cells of a table, row by row; `brackets` holds their intervals."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.brackets = [], []
        self._aside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
            self.brackets.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.brackets[-1].append("")
        self._aside = tag == "span"

    def handle_endtag(self, tag):
        self._aside = False

    def handle_data(self, data):
        (self.brackets if self._aside else self.rows)[-1][-1] += data


def parse_number(text):
    """Return the number in a cell, and half a unit of its last digit."""
    digits = text.strip().replace("−", "-").removesuffix("%").strip()
    return float(digits), 0.5001 * 10 ** -len(digits.partition(".")[2])


def assert_shows(text, expected):
    found, half = parse_number(text)
    assert found == pytest.approx(expected, abs=half + 2e-5 * abs(expected)), text


def expected_cells(numbers, name):
    """Return the numbers that the tables must show for a model, by column heading."""
    own = {"CRPS": global_mean(numbers.crps[name]), "fair CRPS": global_mean(numbers.fair[name])}
    own |= {"RMSE": math.sqrt(global_mean(numbers.error[name] ** 2)), "bias": global_mean(numbers.error[name])}
    own["spread / error"] = numbers.ratio(name)
    for other, shown in {"raw": "raw", "emos": "EMOS"}.items():
        if other != name:
            own[f"vs {shown}, fair"] = 100 * numbers.skill(name, other)
    if name != "raw":
        own["vs raw, plain"] = 100 * numbers.skill(name, "raw", "crps")
        own |= {"captured, fair": 100 * numbers.captured(name), "captured, plain": 100 * numbers.captured(name, "crps")}
    return own


def test_the_table_of_the_report_shows_the_numbers(numbers, scores):
    table = TableCells(html_table(scores))
    head, *rows = table.rows
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
    assert_shows(by_name["oracle"]["CRPS"], global_mean(plain_crps(numbers.oracle, numbers.truth)))
    assert list(written) == list(LAWS)
    for name, row in written.items():
        cells = {column: cell for column, cell in zip(head, row, strict=True) if cell != "–" and column != "model"}
        expected = {column: value for column, value in expected_cells(numbers, name).items() if column in cells}
        expected |= {"CRPS": global_mean(numbers.written[name]), "spread / error": numbers.written_ratio[name]}
        expected["vs raw, plain"] = 100 * (1 - expected["CRPS"] / global_mean(numbers.crps["raw"]))
        assert set(cells) == set(expected) == {"CRPS", "vs raw, plain", "RMSE", "bias", "spread / error"}
        for column, number in expected.items():
            assert_shows(cells[column], number)
    for row, brackets in zip(table.rows[1:], table.brackets[1:], strict=True):
        for column, cell, bracket in zip(head, row, brackets, strict=True):
            if bracket:
                low, high = (parse_number(end)[0] for end in bracket.strip()[1:-1].split(","))
                assert low <= parse_number(cell)[0] <= high, (row[0], column)


def test_the_table_of_members_shows_the_numbers(numbers, scores):
    head, *rows = TableCells(members_table(scores)).rows
    assert [row[0] for row in rows] == list(LAWS)
    for name, *cells in rows:
        expected = {
            "CRPS of the distribution": global_mean(numbers.crps[name]),
            "CRPS of its members": global_mean(numbers.written[name]),
            "difference": global_mean(numbers.written[name] - numbers.crps[name]),
            "vs raw members": 100 * (1 - global_mean(numbers.written[name]) / global_mean(numbers.crps["raw"])),
            "spread / error of the distribution": numbers.ratio(name),
            "spread / error of its members": numbers.written_ratio[name],
        }
        assert head[1:] == list(expected)
        for cell, number in zip(cells, expected.values(), strict=True):
            assert_shows(cell, number)


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
        columns = ["CRPS", "fair CRPS", "vs raw, fair", "vs raw, plain", "vs EMOS, fair", "captured, fair"]
        expected = [own[column] for column in (*columns, "captured, plain", "spread / error")]
        expected += [numbers.written_ratio[name]] if name in LAWS else []
        for cell, number in zip(rows[name], expected, strict=True):
            assert_shows(cell, number)


def test_the_headline_shows_the_numbers(numbers, scores):
    text = re.sub("<[^>]*>", "", headline(scores))
    skill, emos, share = re.match(
        r"net lowers the fair CRPS of the raw ensemble by (.*?) % \[.*\] and that of EMOS by (.*?) % \[.*\]\. "
        r"That is (.*?) % of the gain",
        text,
    ).groups()
    assert_shows(skill, 100 * numbers.skill("net"))
    assert_shows(emos, 100 * numbers.skill("net", "emos"))
    assert_shows(share, 100 * numbers.captured("net"))
