"""Scores of a report in which every number is another one, so that a number in a wrong place is noticed."""

import re
from html import unescape

import numpy as np

from data_pipeline.grid import Grid
from evaluation.report.shown_data import ExampleForecast, MapData, Plume, TargetReport
from evaluation.scoring.aggregation import WeightedMean
from evaluation.tables.csv_tables import StartScores
from evaluation.tables.score_rows import ScoreRow

GRID = Grid.regular(9, 12)
MODELS = ("raw", "climatology", "emos", "net <1>")
LEADS = (24, 48, 72)
SLICES = {
    "lead": ("24", "48", "72"), "region": ("global", "unweighted", "north", "tropics", "Alps & north"),
    "season": ("DJF", "JJA"), "hour": ("00",),
}  # fmt: skip
SCORES = {
    "crps": ("CRPS", "low", None), "crps_fair": ("fair CRPS", "low", None), "rmse": ("RMSE", "low", None),
    "bias": ("bias", "zero", None), "spread": ("spread", None, None), "spread_skill": ("spread / error", "one", None),
    "brier": ("Brier score", "low", ("> 0 °C", "< 10 %")), "roc_area": ("area under the curve", "high", ("> 0 °C",)),
}  # fmt: skip
AMOUNTS = ("crps", "crps_fair", "rmse", "bias", "spread")
REFERENCES = ("raw", "emos", "climatology")
COMPARED = tuple(
    f"{key}{ending}" for ending in ("", "_fair") for key in (*(f"skill_vs_{name}" for name in REFERENCES), "captured")
)


def make_scores(seed=0):
    """Return scores of four models, of which `net <1>` is shown."""
    draw = np.random.default_rng(seed)
    scores = {
        "task": "t2m", "target": "2t", "units": "K", "lead_times": list(LEADS), "grid": str(GRID), "weights": "area",
        "split": "test", "dates": [["2016-01-01", "2017-12-31"]], "members": 4, "levels": "hazen", "format": 6,
        "n_dates": 32, "n_years": 2, "n_forecasts": 96, "warnings": ["a <warning>"],
        "left_out": {"cells": 0, "of": 3456},
        "ledger": {"forecasts": 96, "used": 96}, "best": {"model": "net <1>", "by": "option"},
        "inputs": {
            "options": "01ab", "data": "23cd", "deepweather": "1.0", "correctors": {"emos": "45ef", "net <1>": "67"},
        },
        "definitions": {name: _definition(name, *words) for name, words in SCORES.items()},
        "diagram_definitions": {"rank": {"title": "rank histogram", "text": "Ranks & ties.", "reference": "C 2001"}},
        "slices": {
            kind: {label: _sample_size(draw) for label in labels} for kind, labels in SLICES.items()
        },
        "models": {name: _model(draw, name) for name in MODELS},
        "best_set": {"lowest": "emos", "models": ["emos"], "level": 0.05, "text": "emos & all others."},
        "power": {
            "level": 0.05, "power": 0.8, "models": {"net <1>": {"raw": 2.34}}, "text": "These starts show 3 % < 4 %.",
        },
        "leak_audit": {
            "models": {"emos": {"nearest_days": 545, "part": "model"}}, "notes": ["a note & more"],
        },
        "oracle": {
            "n_forecasts": 90, "crps": 0.2, "crps_plain": 0.22, "spread_skill": 1.0,
            "diagrams": {"rank_histogram": {"": {"y": [0.2] * 5, "independent_cases": [300.0]}}},
        },
    }  # fmt: skip
    scores["pairs"] = {name: {other: _pair(draw) for other in MODELS[:k]} for k, name in enumerate(MODELS)}
    return scores


def make_target(scores=None, fields=None, folder="", amount=1.0):
    """Return what the page shows of a target, with a scorecard, and scores of starts times `amount`."""
    scores = scores or make_scores()
    best, draw = scores["best"]["model"], np.random.default_rng(3)
    whole = {"target": scores["target"], "units": "K", "hour": "all", "members": "all", "n_forecasts": 3, "n_dates": 3}
    gains = [
        ScoreRow(
            model=best, form="distribution", score="crps_fair", label="", lead_time=lead, region=region, season=season,
            value=0.3, low=0.2, high=0.4, skill=skill, skill_low=skill - 0.1, skill_high=skill + 0.1, **whole,
        )
        for lead in ("all", *map(str, LEADS))
        for season in ("all", *SLICES["season"])
        for region in SLICES["region"]
        for skill in [float(draw.normal(scale=0.2))]
    ]  # fmt: skip
    times = 1_456_531_200 + 86_400 * np.arange(5)
    means = {
        name: {kind: WeightedMean(amount * draw.random(5), np.ones(5)) for kind in ("crps", "crps_fair")}
        for name in scores["models"]
    }
    return TargetReport(folder, scores, fields or make_fields(), gains, StartScores(times, means))


def make_fields(seed=0, grid=GRID, holes=True):
    """Return the maps of all models, and three cases with a plume each."""
    draw = np.random.default_rng(seed)
    shape = grid.shape
    last = {"error": {name: draw.normal(size=shape) for name in MODELS}} | {
        key: {name: 0.1 + draw.random(shape) for name in MODELS}
        for key in ("crps", "crps_fair", "squared_error", "expected_squared_error")
    }
    if holes:
        last["error"]["emos"][2, 0] = np.nan
    land = draw.random(shape)
    cases = {name: _case(draw, shape) for name in ("best", "median", "worst")}
    squares = last["squared_error"], last["expected_squared_error"]
    return MapData(grid, LEADS[-1], last["crps"], last["crps_fair"], last["error"], cases, land, False, *squares)


def tables_of(html):
    """The texts of the cells of every table of a page, row by row; intervals in small print follow a blank."""
    return [
        [
            [unescape(re.sub("<[^>]*>", "", cell)).strip() for cell in re.findall("<t[hd].*?>(.*?)</t[hd]>", row)]
            for row in re.findall("<tr.*?>(.*?)</tr>", table)
        ]
        for table in re.findall("<table>(.*?)</table>", html, re.DOTALL)
    ]


def _case(draw, shape):
    """A start in February 2016."""
    members, quantiles = 280 + draw.random((2, 1, 5))
    plume = Plume("largest gain", (2, 0), np.array([72]), members, np.sort(quantiles), 280 + draw.random(1))
    return ExampleForecast(1_456_531_200, 72, *(280 + draw.random((4, *shape))), plumes=(plume,), gain=12.3)


def _pair(draw):
    less, p = float(draw.normal()), float(draw.random())
    found = {"score": "crps_fair", "crps_minus": less, "ci95": _interval(draw, less)}
    return found | {"p": p / 3, "p_holm": p, "year_share": None}


def _sample_size(draw):
    return {key: int(draw.integers(5, 9999)) for key in ("n_forecasts", "n_dates", "cells")}


def _definition(name, title, best, labels):
    words = {"title": title, "text": f"Text of {title} < 1.", "reference": "A & B 2000", "best": best}
    return words | {"labels": list(labels) if labels else None, "units": "target" if name in AMOUNTS else ""}


def _model(draw, name):
    by = {kind: {one: _entry(draw, name) for one in labels if one != "global"} for kind, labels in SLICES.items()}
    histogram = {"rank_histogram": {"": {"y": [0.2] * 5}}}
    own = {"crps_fair_valid": True, "diagrams": histogram, "members": None, "by": by}
    own["central_interval"] = {"nominal": 0.8, "held": 0.79, "ci95": [0.77, 0.81]}
    own["lead_gain"] = None if name == "raw" else {
        "24": {"hours": None, "ci95": None, "at_least": 0, "at_most": None},
        "48": {"hours": 12.0, "ci95": [10.0, 14.0], "at_least": None, "at_most": None},
        "72": {"hours": 26.4, "ci95": [24.0, 28.8], "at_least": None, "at_most": None},
    }  # fmt: skip
    if name not in ("raw", "climatology"):
        keys = ("crps", "rmse", "bias", "spread", "spread_skill", "skill_vs_raw", "crps_minus_distribution")
        own["members"] = {key: float(draw.random()) for key in keys}
        own["members"]["ci95"] = {key: _interval(draw, own["members"][key]) for key in (keys[0], *keys[5:])}
    return _entry(draw, name) | own


def _entry(draw, name):
    entry = {"ci95": {}, "skill": {}, "ci95_skill": {}}
    for key in COMPARED:
        missing = key.startswith("captured") and name == "climatology"
        entry[key] = None if missing else float(draw.normal(scale=0.7))
        entry["ci95"][key] = None if missing else _interval(draw, entry[key])
    for found, intervals in ((entry, entry["ci95"]), (entry["skill"], entry["ci95_skill"])):
        for score, (_, best, labels) in SCORES.items():
            if found is not entry and (best != "low" or score.startswith("crps")):
                continue
            values = {label: float(draw.normal(scale=0.7)) for label in labels or ("",)}
            ends = {label: _interval(draw, value) for label, value in values.items()}
            found[score], intervals[score] = (values, ends) if labels else (values[""], ends[""])
    entry["crps"] = abs(entry["crps"])
    entry["ci95"]["crps"] = _interval(draw, entry["crps"])
    return entry


def _interval(draw, value):
    return [value - draw.random() / 2, value + draw.random() / 2]
