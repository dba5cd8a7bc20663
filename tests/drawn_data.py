"""Scores and fields with something to draw in every figure of the report."""

import numpy as np

from data_pipeline.grid import Grid
from evaluation.report.shown_data import ExampleForecast, ExpertMap, MapData, Plume, TargetReport
from evaluation.scoring.aggregation import WeightedMean
from evaluation.tables.csv_tables import StartScores

GRID = Grid.regular(9, 12)
LEADS, HOURS = (24, 48, 72, 96, 120, 240), (0, 6, 12, 18)
REGIONS = ("global", "unweighted", "north", "tropics", "south", "land", "sea", "europe", "a region with a long name")
GROUPS = {"lead": LEADS, "region": REGIONS, "season": ("DJF", "MAM", "JJA", "SON"), "hour": HOURS}
MODELS = ("raw", "climatology", "emos", "a long model name", "unet")
THRESHOLDS = ("> 280 K", "< 10 %", "> 90 %")
LEVELS = ("0.1", "0.5", "0.9")


def drawn_scores():
    """Scores of five models with random numbers; every value has an interval."""
    rng = np.random.default_rng(0)

    def between(low, high):
        value = rng.uniform(low, high)
        return value, [value - 0.03, value + 0.04]

    def entry():
        found = {"ci95": {}}
        for key in ("skill_vs_raw", "skill_vs_raw_fair", "captured", "captured_fair"):
            found[key], found["ci95"][key] = between(-0.1, 0.5)
        found["spread_skill"], found["ci95"]["spread_skill"] = between(0.6, 1.2)
        found["crps"], found["ci95"]["crps"] = between(0.5, 1.5)
        found["bias"], found["ci95"]["bias"] = between(-1, 1)
        skills = {label: between(-0.1, 0.6) for label in (*THRESHOLDS, *LEVELS)}
        labels = {"brier": THRESHOLDS, "quantile_score": LEVELS}
        found["skill"] = {name: {label: skills[label][0] for label in those} for name, those in labels.items()}
        found["ci95_skill"] = {name: {label: skills[label][1] for label in those} for name, those in labels.items()}
        return found

    def model():
        histogram = rng.dirichlet([9.0] * 11)
        return entry() | {
            "by": {kind: {str(label): entry() for label in labels} for kind, labels in GROUPS.items()},
            "crps_fair_valid": True,
            "diagrams": {
                "rank_histogram": {"": {"x": list(range(11)), "y": histogram.tolist(), "independent_cases": [400.0]}},
                "reliability": {label: reliability() for label in THRESHOLDS},
                "roc": {label: {"x": [1, 0.6, 0.2, 0], "y": [1, *rng.uniform(0.6, 1, 2), 0]} for label in THRESHOLDS},
                "economic_value": {label: economic_value() for label in THRESHOLDS},
                "spread_error": {"": {"x": [0.5, 1, 2], "y": [*rng.uniform(0.4, 3, 2), None], "share": [0.5, 0.3, 0.2]}},  # noqa: E501
                "other": {"": {"x": [1, 2, 3], "y": rng.normal(size=3).tolist()}},
            },
        }  # fmt: skip

    def reliability():
        x, y = np.sort(rng.random(5)), np.sort(rng.random(5))
        return {
            "x": x.tolist(), "y": y.tolist(), "low": (x - 0.05).tolist(), "high": (x + 0.05).tolist(),
            "share": [0.6, 0.1, 0.1, 0.1, 0.1], "calibrated": y.tolist(),
        }  # fmt: skip

    def economic_value():
        x = np.linspace(0.01, 0.99, 99)
        return {"x": x.tolist(), "y": (4 * x * (1 - x)).tolist(), "as_forecast": (3 * x * (1 - x) - 0.1).tolist()}

    models = {name: model() for name in MODELS}
    for name, chances in {"raw": (0.0001, 0.02), "unet": (0.25, 0.6)}.items():
        panel = models[name]["diagrams"]["rank_histogram"][""]
        panel |= {"p_chi_square": [chances[0]], "p_kolmogorov": [chances[1]]}
    definition = {"reference": "A 2000", "units": "", "best": "low", "text": "A text.", "labels": None}
    diagrams = ("rank_histogram", "reliability", "roc", "economic_value", "spread_error", "other")
    return {
        "target": "t@850", "units": "K", "lead_times": list(LEADS), "n_dates": 40, "best": {"model": "unet"},
        "slices": {kind: {str(label): {} for label in labels} for kind, labels in GROUPS.items()},
        "models": models,
        "oracle": {"diagrams": {"rank_histogram": {"": {"y": [1 / 13] * 13, "independent_cases": [40.0]}}}},
        "definitions": {
            "brier": definition | {"title": "Brier score", "labels": list(THRESHOLDS)},
            "quantile_score": definition | {"title": "quantile score", "labels": list(LEVELS)},
            "rmse": definition | {"title": "RMSE", "units": "target"},
            "crps": definition | {"title": "CRPS", "units": "target"},
            "bias": definition | {"title": "bias", "units": "target", "best": "zero"},
        },
        "diagram_definitions": {name: {"title": name, "text": "A text.", "reference": "B 2001"} for name in diagrams},
    }  # fmt: skip


def drawn_fields(grid=GRID, leads=LEADS):
    """Maps, three cases with plumes, a test of significance and the choices of a mixture."""
    rng = np.random.default_rng(1)
    maps = {name: rng.uniform(0.5, 1.5, grid.shape) for name in MODELS}
    start = int(np.datetime64("2016-02-27T00", "s").astype(int))

    def plume(choice, cell):
        members = 280 + rng.normal(size=(len(leads), 10)).cumsum(0)
        quantiles = np.quantile(members - 0.5, [0.05, 0.25, 0.5, 0.75, 0.95], axis=1).T
        return Plume(choice, cell, np.array(leads), members, quantiles, members[:, 0])

    def case():
        plumes = plume("largest gain", (2, 0)), plume("lowest gain", (3, 0))
        return ExampleForecast(start, 240, *(280 + rng.random((4, *grid.shape))), plumes=plumes, gain=12.3)

    return MapData(
        grid, 240, maps, maps, maps, {name: case() for name in ("best", "median", "worst")}, rng.random(grid.shape),
        squared_error=maps, expected_squared_error=maps, significant=rng.random(grid.shape) > 0.5,
        experts=ExpertMap("stem.0", 12, rng.integers(0, 12, grid.shape)),
    )  # fmt: skip


def drawn_target(fields=None):
    """The scores and fields as a target of the report, with forty starts."""
    draw, times = np.random.default_rng(2), 1_456_531_200 + 86_400 * 9 * np.arange(40)
    means = {name: {"crps_fair": WeightedMean(2 * draw.random(40), np.full(40, 2.0))} for name in MODELS}
    return TargetReport("", drawn_scores(), fields or drawn_fields(), (), StartScores(times, means))
