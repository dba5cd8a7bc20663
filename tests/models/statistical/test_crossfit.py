"""In training, a sample gets the fit to all other years; compared with fits by brute force."""

import numpy as np
import pytest
import torch

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector
from models.networks.baseline import EMOSBaseline
from models.networks.error_climate import ErrorClimate
from models.statistical.cases import Passes
from models.statistical.crossfit import SINGLE_YEAR_FOLDS, fold_index, year_folds
from models.statistical.emos import EMOS

TASK, GRID = Task("toy", ["2t", "msl"], ["2t"], [24, 48]), Grid.regular(5, 8)
MLP = {"_target_": "models.networks.mlp.MLP", "width": 4, "baseline": {"seasonal": False, "shared": False}}


def valid_year(sample):
    """Return the calendar year of the valid time of a sample, by NumPy."""
    seconds = int(sample.init_time) + 3600 * int(sample.lead_time)
    return int(np.datetime64(seconds, "s").astype("M8[Y]").astype(int)) + 1970


def without(data, years):
    """Return the samples of a toy data set outside some years."""
    return [s for s in data.samples if valid_year(s) not in years]


def batch_of(samples):
    return torch.utils.data.default_collate(list(samples))


def test_in_training_a_sample_gets_the_error_maps_of_the_other_years(toy):
    data = toy(TASK, GRID, 330)  # every fourth day from September 2001 to April 2005
    years = sorted({valid_year(s) for s in data})
    assert years == [2001, 2002, 2003, 2004, 2005]
    for k, sample in enumerate(data.samples):
        sample.target[0, 1, 1] = torch.nan  # no truth at all
        if valid_year(sample) != 2003 or k % 5:
            sample.target[0, 2, 2] = torch.nan  # none without 2003
        if k % 3:
            sample.target[0, 3, 3] = torch.nan
    climate = ErrorClimate(TASK, GRID)
    climate.fit(batches(data, 7))
    climate.train()
    for year in years:
        own = batch_of(s for s in data if valid_year(s) == year)
        others = ErrorClimate(TASK, GRID)
        others.fit([batch_of(without(data, [year]))])
        expected = others.eval()(own)
        torch.testing.assert_close(climate(own), expected, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(climate.eval()(own), expected, atol=1e-3)
        climate.train()
    assert set(climate.state_dict()) == {"bias", "residual"}


@pytest.mark.parametrize(
    "options", [{"shared": False}, {"shared": False, "seasonal": False}, {"shared": True, "seasonal": False}]
)
def test_in_training_a_baseline_is_fitted_to_other_years(options, toy):
    task, grid = Task("toy", ["2t"], ["2t"], [24, 48]), Grid((50.0, 40.0), (0.0, 10.0))
    data = toy(task, grid, 430)  # 2001 to 2006
    start = EMOSBaseline(task, grid, options)
    start.fit(batches(data, 50))
    years = sorted({valid_year(s) for s in data})
    # Six years in four groups; Python rounds 1.5 to 2 and 4.5 to 4.
    groups = [years[:2], years[2:3], years[3:4], years[4:]]
    assert len(start.without.ends) + 1 == len(groups)
    for group in groups:
        emos = EMOS(task, grid, **options)
        emos.fit([batch_of(without(data, group))])
        own = batch_of(s for s in data if valid_year(s) in group)
        expected = emos(own)
        mean, _ = start.train()(own)
        torch.testing.assert_close(mean, expected.mean, rtol=0, atol=2e-4)
        full = EMOS(task, grid, **options)
    full.fit(batches(data, 50))
    torch.testing.assert_close(start.eval()(own)[0], full(own).mean)


def test_the_fold_of_a_sample_is_its_calendar_year():
    random = np.random.default_rng(0)
    valid = random.integers(0, 60 * 365 * 86400, 5000)
    valid[:2] = 978_307_200, 978_307_199  # the first and the last second around New Year 2001
    passes = Passes(lambda rows: iter(()), 1, torch.from_numpy(valid) - 3600, torch.ones(5000, dtype=torch.int64))
    years = valid.astype("M8[s]").astype("M8[Y]").astype(int)
    found = fold_index(torch.from_numpy(valid), year_folds(passes)).numpy()
    assert (found == years - years.min()).all()
    groups = fold_index(torch.from_numpy(valid), year_folds(passes, 4)).numpy()
    assert sorted(set(groups)) == [0, 1, 2, 3]
    assert all(len(set(groups[years == year])) == 1 for year in set(years))


def test_a_single_year_is_held_out_in_parts_with_a_note(toy):
    task = Task("toy", ["2t"], ["2t"], [24])
    data = toy(task, GRID, 80)
    start = int(np.datetime64("2001-01-02", "s").astype(int))
    data.samples = [s._replace(init_time=torch.tensor(start + 4 * 86400 * k)) for k, s in enumerate(data.samples)]
    corrector = Corrector(task, GRID, MLP, data.static)
    corrector.fit(data)
    errors = corrector.model.features.errors
    assert len(errors.without.table) == SINGLE_YEAR_FOLDS
    assert sum("all training samples are valid in 2001" in note for note in corrector.notes) == 1
    corrector.fit(toy(task, GRID, 300))
    assert not any("all training samples are valid" in note for note in corrector.notes)


def test_fits_of_folds_are_not_in_the_file(toy, tmp_path):
    data = toy(TASK, GRID, 150)
    corrector = Corrector(TASK, GRID, MLP, data.static)
    corrector.fit(data)
    assert corrector.model.head.start.without.fitted
    corrector.save(tmp_path / "c.safetensors")
    loaded = Corrector.load(tmp_path / "c.safetensors")
    assert not loaded.model.features.errors.without.fitted
    sample = batch_of(data.samples[:4])
    with torch.no_grad():
        torch.testing.assert_close(loaded.train()(sample).mean, corrector.eval()(sample).mean, rtol=0, atol=0)
