"""Fits before training: in blocks of rows, counted where they fail; forecasts read nothing back from a device."""

import warnings
from itertools import pairwise

import pytest
import torch
from specs import QUICK, SPECS
from torch.utils._python_dispatch import TorchDispatchMode

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models import corrector as corrector_module
from models.corrector import Corrector, build_model, in_batches, needed_task
from models.members.coupling import written_members
from models.normalizer import Normalizer
from models.statistical import cases, regression
from models.statistical.cases import TooFewCasesError, covers_year, lead_index, longest_gap

TASK, GRID = Task("toy", ["2t", "msl"], ["2t", "msl"], [24, 48]), Grid.regular(3, 4)
FITTED = {
    "climatology": SPECS["climatology"],
    "emos": QUICK["emos"],
    "emos of windows": QUICK["emos"] | {"seasonal": False, "window_days": 182},
    "boosted": SPECS["boosted_emos"] | {"max_steps": 3},
    "mlp": SPECS["mlp"],
    "mlp from emos": SPECS["mlp"] | {"baseline": {"shared": False}},
}
OTHERS = {
    "quantiles of the climate": SPECS["climatology"] | {"distribution": "quantiles"},
    "emos of each cell": SPECS["emos"] | {"seasonal": False, "shared": False},
    "shared emos of windows": SPECS["emos"] | {"seasonal": False, "shared": True, "scale": "log", "window_days": 182},
    "emos that shares": SPECS["emos"],
    "bounded emos": QUICK["emos"] | {"family": "censored_logistic", "scale": "log", "lower": 275.0},
    "emos of roots": QUICK["emos"] | {"family": "censored_normal", "lower": 0.0, "power": 0.5},
}
"""Models whose fits have the form of others."""


def corrector_of(spec, data, task=TASK, grid=GRID):
    torch.manual_seed(0)
    task = needed_task(spec, task)
    corrector = Corrector(task, grid, spec, data.static)
    corrector.fit(data)
    return corrector


@pytest.mark.parametrize(
    "name", ["climatology", "emos that shares", "emos of windows", "boosted", "mlp", "quantiles of the climate"]
)
def test_blocks_of_rows_and_small_parts_give_the_same_numbers(name, toy, monkeypatch):
    """The limit on memory lets one row fit at a time, and minimises the scores of some cells at a time."""
    spec, task = (FITTED | OTHERS)[name], Task("toy", ["2t", "msl"], ["2t", "msl"], [24])
    data = toy(needed_task(spec, task), GRID, 40)
    for sample in data.samples[::2]:
        sample.target[0, 1, 3] = torch.nan
    expected, rows_read = corrector_of(spec, data, task), []

    def begin(dataset, rows, size):
        rows_read.append(rows)
        return in_batches(dataset, rows, size)

    monkeypatch.setattr(cases, "CASES_BYTES", 1)
    monkeypatch.setattr(regression, "CASES_AT_ONCE", 200)
    monkeypatch.setattr(corrector_module, "in_batches", begin)
    found = corrector_of(spec, data, task)
    assert {(rows.start, rows.stop) for rows in rows_read} == {(None, None), (0, 1), (1, 2), (2, 3)}
    assert found.provenance == expected.provenance
    # Another order of summation changes the last digits of coefficients, not the minimum.
    for own, theirs in zip(found.model.buffers(), expected.model.buffers(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)
    sample = next(batches(data, 20))
    with torch.no_grad():
        scores = [each.eval()(sample).crps(sample.target) for each in (found, expected)]
    torch.testing.assert_close(
        *scores, rtol=0, atol=1e-6 * float(sample.target.nan_to_num().abs().max()), equal_nan=True
    )


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        *((name, "truth") for name in ("climatology", "quantiles of the climate", "emos", "emos of windows", "mlp")),
        *((name, "values") for name in ("emos", "mlp")),
    ],
)
def test_cases_without_truth_or_values_have_no_influence(name, hidden, toy):
    spec = (FITTED | OTHERS)[name]
    task = needed_task(spec, Task("toy", ["2t", "msl"], ["2t"], [24]))
    batch = next(batches(toy(task, GRID, 160), 160))
    batch = batch._replace(ensemble=(batch.ensemble - 280) / 10, target=(batch.target - 280) / 10)
    holed = Sample(*(tensor.clone() for tensor in batch))
    if hidden == "truth":
        holed.target[80:] = torch.nan
    else:
        holed.mask[80:], holed.ensemble[80:] = False, 1e4
    fits = []
    for part in (holed, Sample(*(tensor[:80] for tensor in batch))):
        torch.manual_seed(0)
        fits.append(build_model(spec, task, GRID))
        fits[-1].fit([part])
    for own, theirs in zip(*(fit.state_dict().values() for fit in fits), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["quantiles of the climate", "shared emos of windows"])
def test_a_fit_survives_its_file(name, toy, tmp_path):
    """`test_contract.py` has the models of conf/model."""
    data = toy(needed_task(OTHERS[name], TASK), GRID, 80)
    corrector = corrector_of(OTHERS[name], data).eval()
    corrector.save(tmp_path / "corrector")
    sample, again = next(batches(data, 4)), Corrector.load(tmp_path / "corrector")
    with torch.no_grad():
        found, expected = (each(sample).crps(sample.target) for each in (again, corrector))
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_block_fits_into_memory(toy, monkeypatch):
    passes = cases.Passes.of(batches(toy(TASK, Grid.regular(5, 8), 4), 2))
    assert [b.stop - b.start for b in passes.blocks(cases.CASES_BYTES // 2)] == [2, 2, 1]
    assert passes.blocks(0) == [slice(0, 5)]
    assert len(passes.blocks(10 * cases.CASES_BYTES)) == 5


def test_longest_gap_equals_a_loop():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        days = torch.randint(1, 366, (int(torch.randint(1, 12, (), generator=generator)),), generator=generator)
        present = sorted(set(days.tolist()))
        gaps = [b - a for a, b in pairwise(present)] + [present[0] + 365.25 - present[-1]]
        assert longest_gap(days) == max(gaps)
    assert covers_year(torch.arange(1, 366, 90))
    assert not covers_year(torch.arange(1, 366, 90), harmonics=2)
    assert not covers_year(torch.arange(1, 32))


def test_one_month_of_training_gives_no_annual_cycle(toy):
    """The bias of January is a constant; a harmonic through one month would explode in July."""
    task = Task("toy", ["2t"], ["2t"], [24])
    data = toy(task, GRID, 124)
    for k, sample in enumerate(data.samples):
        year, day = divmod(k, 31)
        data.samples[k] = sample._replace(init_time=torch.tensor(978_307_200 + (365 * year + day) * 86400))
    summer = next(batches(toy(task, GRID, 20, seed=9), 20))
    summer = summer._replace(init_time=torch.full((20,), 994_000_000))
    for name in ("emos", "climatology", "boosted", "mlp", "quantiles of the climate"):
        spec = (FITTED | OTHERS)[name]
        corrector = corrector_of(spec, data, task)
        assert any("do not cover the year (lead time 24 h)" in note for note in corrector.notes), name
        with torch.no_grad():
            moved = summer._replace(init_time=torch.full((20,), 979_862_400))
            torch.testing.assert_close(corrector.eval()(summer).mean, corrector(moved).mean, atol=0.5, rtol=0)
    emos = corrector_of(FITTED["emos"], data, task)
    plain = corrector_of(OTHERS["emos of each cell"], data, task)
    with torch.no_grad():
        torch.testing.assert_close(emos(summer).mean, plain(summer).mean)
    assert not plain.notes


def test_cells_that_cannot_be_fitted_are_counted(toy):
    task = Task("toy", ["2t"], ["2t"], [24, 48])
    for name, few in {"emos of each cell": 10, "climatology": 2, "boosted": 10, "quantiles of the climate": 2}.items():
        data = toy(task, GRID, 130)
        for k, sample in enumerate(data.samples):
            sample.target[0, 0, 0] = torch.nan  # no truth: nothing to fit, nothing to score
            if k >= few:
                sample.target[0, 1, :3] = torch.nan  # five cases at each lead time, or one
        corrector = corrector_of((FITTED | OTHERS)[name], data, task)
        counts = {"cells": 2 * 3, "of": 2 * (12 - 1), "targets": {"2t": 6}}
        assert {key: corrector.provenance["unfitted"][key] for key in counts} == counts, name
        assert any(note.startswith("6 of 22 regressions") for note in corrector.notes)
    corrector = corrector_of(OTHERS["emos of each cell"], toy(task, GRID, 130), task)
    assert corrector.provenance["unfitted"] == {"cells": 0, "of": 24}
    assert corrector.notes == []


@pytest.mark.parametrize(
    ("name", "count", "needed"), [("emos of each cell", 7, 8), ("climatology", 1, 2), ("boosted", 7, 8)]
)
def test_no_fit_in_any_cell_is_an_error(name, count, needed, toy):
    task = Task("toy", ["2t"], ["2t"], [24])
    data = toy(task, GRID, count)
    step = 365 * 86400 // count
    data.samples = [s._replace(init_time=torch.tensor(10**9 + k * step)) for k, s in enumerate(data.samples)]
    with pytest.raises(TooFewCasesError, match=rf"cannot be fitted in any cell at lead time 24 h.* {needed} training"):
        corrector_of((FITTED | OTHERS)[name], data, task)
    assert issubclass(TooFewCasesError, InputError)


def test_a_cell_without_training_values_gets_the_raw_ensemble(toy):
    """With a location of 0 K, 280 K would be a departure of many standard deviations."""
    task = Task("toy", ["2t", "msl"], ["2t"], [24])
    data = toy(task, GRID, 100)
    for sample in data.samples:
        sample.mask[:, 1, 3], sample.ensemble[:, :, 1, 3] = False, torch.nan
        sample.mask[0, 2] = False
    corrector = corrector_of(SPECS["mlp"] | {"baseline": None}, data, task)
    assert any(note.startswith("2t has no value in 5 of 12 cells") for note in corrector.notes)
    assert corrector.normalizer.location[0].min() > 250
    corrector.model.network[-1].bias.data.fill_(1)
    sample = next(batches(toy(task, GRID, 3, seed=5), 3))
    raw = sample.ensemble[:, :, :1].movedim(1, 0)
    with torch.no_grad():
        found = corrector.eval()(sample)
    members = written_members(found, sample, task, GRID).members
    unseen = torch.zeros(GRID.shape, dtype=torch.bool)
    unseen[1, 3] = unseen[2] = True
    torch.testing.assert_close(found.mean[..., unseen], raw.mean(0)[..., unseen])
    torch.testing.assert_close(found.std[..., unseen], raw.std(0)[..., unseen])
    torch.testing.assert_close(members[..., unseen], raw[..., unseen], rtol=0, atol=0)
    assert (found.mean - raw.mean(0))[..., ~unseen].abs().min() > 0.1
    assert found.crps(sample.target).isfinite().all()


FALLBACKS = {
    "emos": SPECS["emos"],
    "shared emos": SPECS["emos"] | {"shared": True},
    "emos of each cell": SPECS["emos"] | {"shared": False},
    "emos of windows": QUICK["emos"] | {"seasonal": False, "window_days": 182},
    "boosted": SPECS["boosted_emos"] | {"max_steps": 3},
    "shared boosted": SPECS["boosted_emos"] | {"max_steps": 3, "shared": True},
    "mlp": SPECS["mlp"],
    "mlp from emos": SPECS["mlp"] | {"baseline": {"shared": False}},
    "bqn": SPECS["mlp"] | {"head": "bernstein"},
}


@pytest.mark.parametrize(
    ("name", "hidden"),
    [*((name, "truth") for name in FALLBACKS), ("emos", "ensemble"), ("shared emos", "ensemble"), ("mlp", "ensemble")],
)
def test_cells_without_training_cases_are_not_worse_than_the_raw_ensemble(name, hidden, toy):
    """A cell that no training sample has is counted, and its forecast is no number from nothing."""
    task = needed_task(FALLBACKS[name], Task("toy", ["2t", "msl"], ["2t"], [24]))
    data = toy(task, GRID, 120)
    for sample in data.samples:
        if hidden == "truth":
            sample.target[0, 1, :3] = torch.nan
        else:
            sample.mask[0, 1, :3], sample.ensemble[:, 0, 1, :3] = False, torch.nan
    corrector = corrector_of(FALLBACKS[name], data, task).eval()
    notes = [note for note in corrector.notes if note.startswith("2t has no ")]
    assert [note.partition(" cells in all")[0] for note in notes] == [
        f"2t has no {'truth' if hidden == 'truth' else 'value'} in 3 of 12"
    ]
    batch = next(batches(toy(task, GRID, 60, seed=3), 60))
    raw = Corrector(task, GRID, {"_target_": "models.statistical.raw.Raw"}, data.static).eval()
    with torch.no_grad():
        ours, theirs = (each(batch).crps(batch.target)[:, 0, 1, :3].mean() for each in (corrector, raw))
    assert ours < 1.05 * theirs


def test_a_sea_only_variable_without_values_over_land_gets_no_note(toy):
    task = Task("toy", ["sst", "2t"], ["2t"], [24])
    data = toy(task, GRID, 20)
    for sample in data.samples:
        sample.mask[:2, 1], sample.ensemble[:, :2, 1] = False, torch.nan
    normalizer = Normalizer(task, GRID)
    normalizer.fit(batches(data, 5))
    (note,) = normalizer.report.notes
    assert note == "2t has no value in 4 of 12 cells in all training samples; there the correction is the raw ensemble"


def test_one_cell_is_a_grid_without_warnings(toy):
    grid = Grid((50.0,), (8.0,))
    data = toy(TASK, grid, 130)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("emos", "mlp"):
            corrector = corrector_of(FITTED[name], data, grid=grid)
            assert corrector.normalizer.static_scale.isfinite().all()
            assert corrector.eval()(next(batches(data, 3))).mean.isfinite().all()


class NoReading(TorchDispatchMode):
    """Fails where Python or the size of a tensor depends on the value of another tensor."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "item", "masked_select", "unique2", "_unique2"}, name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [*FITTED, "bounded emos"])
def test_a_forecast_reads_nothing_back_from_the_device(name, toy):
    """In training and in evaluation; each reading would wait for a GPU."""
    spec = (FITTED | OTHERS)[name]
    task = needed_task(spec, TASK)
    corrector = corrector_of(spec, toy(task, GRID, 130))
    sample = corrector.normalizer(next(batches(toy(task, GRID, 4, seed=3), 4)))
    for training in (True, False):
        corrector.train(training)
        with NoReading(), torch.no_grad():
            corrector.model(sample)


def test_positions_of_lead_times():
    task = Task("toy", ["2t"], ["2t"], [6, 24, 120])
    assert lead_index(torch.tensor([24, 6, 120, 24]), task).tolist() == [1, 0, 2, 1]
    assert lead_index(torch.tensor([0, 12, 121]), task).tolist() == [3, 3, 3], (
        "a table of three lead times has no row 3"
    )
    model = build_model(SPECS["emos"], task, GRID)
    assert len(model.coefficients) == 3
