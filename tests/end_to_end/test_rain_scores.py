"""Precipitation at Innsbruck (RainIbk) through the commands, in mm and as its square root.

The protocol is that of Jordan et al. 2019 (doi:10.18637/jss.v090.i12, section 5): days without any spread are left out,
training up to November 2004, test from January 2005. The published scores are of square roots of mm: a file that holds
these as its variable gives them. Scores of the file in mm are in mm, as the models for square roots of its values.
"""

from dataclasses import replace

import numpy as np
import pytest
from station_files import innsbruck

pytest.importorskip("pyreadr")
pytestmark = pytest.mark.long
EMOS = ("model=emos", "model.seasonal=false", "model.scale=log", "model.lower=0")


@pytest.fixture(scope="module")
def rain(samples):
    """Forecasts and observations in mm of the days with spread."""
    files = innsbruck(samples)
    spread = np.sqrt(files.fields["tp"][:, 0, :, 0]).std(1) > 0
    fields = {"tp": files.fields["tp"][spread]}
    return replace(
        files, starts=files.starts[spread], fields=fields, times=files.times[spread], truth=files.truth[spread]
    )


@pytest.fixture
def score(score_models):
    """Train models, each with its options; return the printed table and `scores.json` of the test."""

    def score_rain(files, variable, models):
        return score_models(
            files, models, "data.split.train=[2000-01-01,2004-11-30]", "data.split.val=null",
            "data.split.test=[2005-01-01,2013-12-31]", f"task.inputs=[{variable}]", f"task.targets=[{variable}]",
            "task.lead_times=[192]",
        )  # fmt: skip

    return score_rain


def test_square_roots_have_the_published_scores(rain, score):
    fields, about = {"root": np.sqrt(rain.fields["tp"])}, {"units": {"root": "mm0.5"}, "target": "root"}
    roots = replace(rain, fields=fields, truth=np.sqrt(rain.truth), attributes={}, hours=0, **about)
    families = {
        f"{law}_{by}": (*EMOS, f"model.family=censored_{law}", f"model.score={by}")
        for law in ("normal", "logistic") for by in ("crps", "likelihood")
    }  # fmt: skip
    past = ("model=climatology", "model.distribution=quantiles", "model.quantiles=200", "model.window_days=null")
    _, scores = score(roots, "root", families | {"past": past})
    found = {name: model["crps"] for name, model in scores["models"].items()}
    published = {
        "raw": 1.3210, "past": 1.0260, "normal_likelihood": 0.8760, "logistic_likelihood": 0.8751,
        "normal_crps": 0.8757, "logistic_crps": 0.8754,
    }  # fmt: skip
    for name, value in published.items():
        assert found[name] == pytest.approx(value, abs=1.5e-4), name
    assert scores["n_forecasts"] == 3153
    assert scores["units"] == "mm0.5"


def test_precipitation_is_scored_in_mm(rain, score):
    models = {
        "logistic": (*EMOS, "model.power=0.5", "model.family=censored_logistic"),
        "own": ("model=emos", "model.seasonal=false"),
    }
    printed, scores = score(rain, "tp:72h", models)
    found = {name: 1000 * model["crps"] for name, model in scores["models"].items()}
    assert scores["units"] == "m"
    assert "over 72 h, 192 h ahead" in printed
    assert "CRPS in mm" in printed
    truth, members = rain.truth[:, 0], rain.fields["tp"][:, 0, :, 0].astype(np.float32).astype(float)
    test = rain.times >= np.datetime64("2005-01-01")
    members, truth = members[test], truth[test]
    spread = abs(members[:, :, None] - members[:, None]).mean((1, 2)) / 2
    assert found["raw"] == pytest.approx(float((abs(members - truth[:, None]).mean(1) - spread).mean()), rel=1e-4)
    assert found["logistic"] == pytest.approx(4.4516, abs=2e-3), "that of the same regression on arrays (`EMOSCases`)"
    assert found["own"] == pytest.approx(found["logistic"], rel=1e-6), "the options follow from the variable"
