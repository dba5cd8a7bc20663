"""The check of the heat experiment against loops over points, and a small version of the experiment."""

import json
from itertools import permutations

import numpy as np
import pytest
from tested_device import accelerator

from benchmarks.heat_table import heat_table
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.synthetic.heat import Heat
from data_pipeline.task import Task
from models.corrector import Corrector
from training.heat_check import HeatCheck, agreement

TASK = Task("heat", ["heat"], ["heat"], [1])
HEAT = Heat(rows=8, columns=9, first_year=2000, last_year=2009, steps=6)


def test_the_check_of_a_forecast_without_change():
    """Against a loop over points, also where the forecast is nearly right because nothing conducts."""
    data = ForecastDataset(HEAT, TASK, [2003, 2004])
    marks = HeatCheck(0.03)(
        Corrector(TASK, HEAT.grid, {"_target_": "models.statistical.raw.Raw"}, data.static), HEAT, data
    )
    hits, scaled, squares = np.zeros(HEAT.region.shape), np.zeros(HEAT.region.shape), 0.0
    for year in (2003, 2004):
        frames = HEAT.frames(year).astype(float)
        for step, (i, j) in ((step, place) for step in range(6) for place in np.ndindex(HEAT.region.shape)):
            error, truth = abs(frames[step, i, j] - frames[step + 1, i, j]), frames[step + 1, i, j]
            strictness = HEAT.diffusivities[HEAT.region[i, j]] / 0.25
            hits[i, j] += error <= 1e-8 + 0.03 * truth
            scaled[i, j] += error <= 1e-8 + 0.03 * strictness * truth
            squares += error**2
    points = 12 * HEAT.region.size
    assert 0 < marks["scaled"] < marks["within"] < 100
    assert marks["within"] == pytest.approx(100 * hits.sum() / points)
    assert marks["scaled"] == pytest.approx(100 * scaled.sum() / points)
    assert marks["squared_error"] == pytest.approx(squares / points, rel=1e-5)
    assert marks["regions"] == pytest.approx([100 * hits[HEAT.region == region].mean() / 12 for region in range(3)])
    assert marks["parameters"] == 0
    assert "gate" not in marks


def test_agreement_does_not_depend_on_the_order_of_experts():
    generator = np.random.default_rng(0)
    kind, choice = generator.integers(0, 3, (2, 20, 20))
    best = max((np.array(names)[choice] == kind).mean() for names in permutations(range(3)))
    assert agreement(choice, kind) == pytest.approx(100 * best)
    for names in permutations(range(3)):
        assert agreement(np.array(names)[kind], kind) == 100
    # One expert more than regions: an expert has no region.
    assert agreement(np.where(np.arange(400).reshape(20, 20) < 40, 3, kind), kind) == 90


LITTLE = [
    "experiment=smoe_heat", "data.archive.rows=8", "data.archive.columns=9", "data.archive.steps=6",
    "data.split.train=[1990,1999]", "data.split.val=[2000,2001]", "data.split.test=[2020,2021]",
    "trainer.epochs=2", f"trainer.accelerator={accelerator()}",
]  # fmt: skip


def test_one_command_trains_and_checks(tmp_path, command):
    """The second call repeats nothing. Both runs, the mixture and another model, are in the table."""
    for _ in range(2):
        ended = command(tmp_path, "train", *LITTLE)
        assert ended.code == 0, ended.stderr
    assert "is already trained" in ended.stdout
    ended = command(tmp_path, "train", *LITTLE, "model=heat/known_regions", "data.static=[region]")
    assert ended.code == 0, ended.stderr
    files = sorted((tmp_path / "runs" / "heat").glob("*/test_check.json"))
    assert [file.parent.name for file in files] == ["known_regions-42", "smoe-42"]
    for file, count in zip(files, (27, 27 + 3 * 72), strict=True):
        marks = json.loads(file.read_text())
        assert marks["parameters"] == count
        corrector = Corrector.load(file.with_name("corrector.safetensors"))
        heat = Heat(rows=8, columns=9, steps=6)
        again = HeatCheck()(corrector, heat, ForecastDataset(heat, corrector.task, [2020, 2021]))
        assert again == marks
        assert ended.stdout.splitlines()[-1].startswith("test check: ")
    rows = heat_table(tmp_path / "runs" / "heat").splitlines()
    assert [row.split("|")[1].strip() for row in rows] == ["run", "---", "known_regions-42", "smoe-42"]
    assert rows[3].split("|")[2].strip() == "243"


def test_prepare_is_not_needed(tmp_path, command):
    ended = command(tmp_path, "prepare", "data=heat", "task=heat")
    assert ended.code == 0, ended.stderr
    assert "nothing to prepare" in ended.stdout
    assert not (tmp_path / "data").exists()


def test_the_tolerance_must_be_positive():
    with pytest.raises(InputError, match=r"test_check\.tolerance must be a number greater than 0, got 0"):
        HeatCheck(0)
