"""Weeks of an operator: raw GRIB forecasts drift, and each file is corrected with the newest layer of `monitor`."""

import json

import numpy as np
import pytest
import torch
from correction_runs import write_members
from grib_parts import KEYS
from scipy import stats

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from data_pipeline.writing import Encoder
from models.corrector import Corrector

pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")
GRID, MEMBERS, BATCH, BATCHES = Grid.regular(13, 12), 5, 10, 6
SCORES = stats.norm.ppf((np.arange(MEMBERS) + 0.5) / MEMBERS)
FIRST = np.datetime64("2020-01-01")


def date(day):
    return int(str(FIRST + day).replace("-", ""))


def write_days(folder, batch, shift):
    """Write raw forecasts at +24 h of some days, too warm by `shift` spreads, and their analyses."""
    rng = np.random.default_rng(batch)
    forecasts, analyses = {}, Encoder(GRID, **KEYS, type="an", stream="oper", shortName="2t")
    with (folder / f"an{batch}.grib").open("wb") as truth:
        for day in range(BATCH * batch, BATCH * (batch + 1)):
            analysis = 280 + 5 * rng.normal(size=GRID.shape)
            centre = analysis + rng.normal(size=GRID.shape) + shift
            for number, k in enumerate(rng.permutation(MEMBERS), 1):
                forecasts["2t", date(day), 24, number] = centre + SCORES[k]
            truth.write(analyses.encode(analysis, dataDate=date(day + 1), endStep=0))
    write_members(folder / f"raw{batch}.grib", forecasts, GRID)


def test_the_layer_restores_the_coverage_of_corrected_files(tmp_path, command):
    task = Task("t2m", ["2t"], ["2t"], [24])
    corrector = Corrector(task, GRID, {"_target_": "models.statistical.raw.Raw"}, torch.zeros(3, *GRID.shape))
    corrector.save(tmp_path / "raw.safetensors")
    for batch in range(BATCHES):
        write_days(tmp_path, batch, shift=0.0 if batch < 1 else 1.5)
        layer = ["conformal=monitor/conformal.json"] if batch else []
        words = ["corrector=raw.safetensors", f"input=raw{batch}.grib", f"output=out{batch}.grib", "device=cpu"]
        ended = command(tmp_path, "correct", *words, *layer)
        assert ended.code == 0, ended.stderr
        words = ["corrector=raw.safetensors", f"forecasts=out{batch}.grib", f"analyses=an{batch}.grib"]
        ended = command(tmp_path, "monitor", *words, "run_dir=monitor", "reference=30", "conformal_step=0.15")
        assert ended.code in (0, 4), ended.stderr
    verified = json.loads((tmp_path / "monitor/state.json").read_text())["verified"]
    assert len(verified) == BATCHES * BATCH
    assert [one["conformal"] for one in verified] == [False] * BATCH + [True] * BATCH * (BATCHES - 1)
    shares = np.array([[one["cores"][name] for name in ("south", "tropics", "north")] for one in verified]).mean(1)
    covered = shares[:, 2] - shares[:, 0]
    # The file that was issued when the shift began lost its coverage; four batches later it is back.
    assert covered[BATCH : 2 * BATCH].mean() < 0.55
    assert covered[-BATCH:].mean() == pytest.approx(0.8, abs=0.08)
    assert shares[-BATCH:, 1].mean() == pytest.approx(0.5, abs=0.12)
