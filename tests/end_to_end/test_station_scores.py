"""Real stations through the commands, against the scores of ../shared/data/README.md; the test year is 2020.

Those scores are of EMOS fitted to all years before 2020. Here 2019 is kept for validation, which networks need, so the
fits have a quarter (Hannover: a fifth) less data.
"""

import pytest
from station_files import dillingen, hannover

pytest.importorskip("pyreadr")
pytestmark = pytest.mark.long
CONTROLS = ("t2m", "sp", "u10", "v10", "wspd", "wgust", "tcc", "sh")
INPUTS = "2t,sp,10u,10v,wspd,wgust,tcc,sh," + ",".join(f"{name}_ctrl" for name in CONTROLS)
NETWORK = ("model.depth=1", "trainer.batch_size=64", "trainer.epochs=40", "trainer.learning_rate=0.01")


@pytest.fixture
def score(score_models):
    """Train models, each with its options, on files of stations; return their scores and those of the raw ensemble."""

    def score_stations(files, first_year, inputs, leads, models):
        _, scores = score_models(
            files, models, f"data.split.train=[{first_year},2018]", "data.split.val=[2019,2019]",
            "data.split.test=[2020,2020]", f"task.inputs=[{inputs}]", "task.targets=[2t]",
            f"task.lead_times=[{leads}]",
        )  # fmt: skip
        return scores["models"]

    return score_stations


def test_many_predictors_at_dillingen(samples, score):
    """Boosted EMOS from 24 linear predictors; the network is not linear and gets more out of the same predictors."""
    models = {
        "boosted": ("model=boosted_emos", "model.learning_rate=0.5", "model.max_steps=200"),
        "mlp": ("model=mlp", *NETWORK),
    }
    found = score(dillingen(samples), 2016, INPUTS, "24", models)
    assert found["boosted"]["crps"] <= 0.8285
    assert found["mlp"]["crps"] <= 0.80


def test_emos_at_hannover(samples, score):
    models = {"emos": ("model=emos", "model.seasonal=false", "model.scale=log")}
    found = score(hannover(samples), 2015, "2t", "24,48,72,96,120", models)
    leads = ("24", "48", "72", "96", "120")
    raw, emos = ([found[name]["by"]["lead"][lead]["crps"] for lead in leads] for name in ("raw", "emos"))
    assert raw == pytest.approx([0.643, 0.712, 0.775, 0.884, 0.996], abs=1e-3)
    assert emos == pytest.approx([0.629, 0.702, 0.773, 0.884, 0.999], abs=1.5e-3)
