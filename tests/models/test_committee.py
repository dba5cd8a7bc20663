"""A committee forecasts the average of its correctors; the verb `combine` writes it to one file."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from model_tiles import FIELDS
from ranks import run_on_ranks

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.combine import combine
from models.corrector import Corrector
from models.distribution import CensoredNormal, Ensemble, Logistic, Normal, average
from models.parallel.domain import Domain
from models.protocol import claims

TASK = Task("toy", ["2t", "msl"], ["2t"], [24, 48], ["lsm"])
GRID = Grid.regular(9, 12)
YEARS = {"train_years": [2000, 2004], "val_years": [2005, 2005], "members": 5}


@pytest.fixture
def file_of(toy, tmp_path):
    """Write the file of a corrector with random weights."""

    def leave(name, seed, spec=None, task=TASK, provenance=YEARS, static=None):
        data = toy(task, GRID, 16, seed=seed)
        data.static = static if static is not None else toy(task, GRID, 1).static
        corrector = Corrector(
            task, GRID, spec or {"_target_": "models.networks.mlp.MLP", "width": 8}, data.static, provenance
        )
        corrector.fit(data)
        torch.manual_seed(seed)
        for parameter in corrector.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        corrector.save(path := tmp_path / name)
        return path

    return leave


def test_a_committee_of_three_is_the_mean_in_physical_units(file_of, toy, tmp_path):
    paths = [file_of(f"{seed}", seed) for seed in range(3)]
    combine(paths).save(tmp_path / "all")
    batch = next(batches(toy(TASK, GRID, 4), 4))
    batch.mask[:, 0, 2] = False
    batch.ensemble[:, :, 0, 2] = torch.nan
    together = Corrector.load(tmp_path / "all")(batch)
    alone = [Corrector.load(path)(batch) for path in paths]
    assert not torch.equal(alone[0].mu, alone[1].mu)
    for name in ("mu", "sigma"):
        mean = torch.stack([getattr(forecast, name).double() for forecast in alone]).mean(0)
        torch.testing.assert_close(getattr(together, name).double(), mean, rtol=1e-6, atol=0)


def test_networks_of_different_kinds_are_averaged(file_of, toy):
    """From different baselines, too; the committee has the claims that both make."""
    unet = {"_target_": "models.networks.unet.UNet", "width": 4, "depth": 1, "baseline": "climate"}
    paths = [file_of("mlp", 0), file_of("unet", 1, unet)]
    committee, batch = combine(paths), next(batches(toy(TASK, GRID, 4), 4))
    alone = [Corrector.load(path)(batch) for path in paths]
    expected = (alone[0].quantile(torch.tensor([0.1, 0.9])) + alone[1].quantile(torch.tensor([0.1, 0.9]))) / 2
    torch.testing.assert_close(committee(batch).quantile(torch.tensor([0.1, 0.9])), expected, rtol=1e-5, atol=1e-4)
    assert claims(committee.model).tiles
    assert not claims(committee.model).cellwise


def on_tile(rank, path, sample):
    domain = Domain.split(GRID, 2, 1, rank, dist.group.WORLD.group_name)
    own = sample._replace(**{name: domain.cut(getattr(sample, name)) for name in FIELDS})
    with torch.no_grad():
        found = Corrector.load(path).on(domain)(own)
    return domain.tile, found.mu.numpy()


def test_a_committee_on_tiles_equals_one_on_the_whole_grid(file_of, toy, tmp_path):
    spec = {"_target_": "models.networks.unet.UNet", "width": 4, "depth": 1, "cell_embedding": 2}
    combine([file_of(f"{seed}", seed, spec) for seed in range(2)]).save(tmp_path / "both")
    sample = next(batches(toy(TASK, GRID, 4), 4))
    with torch.no_grad():
        whole = Corrector.load(tmp_path / "both")(sample).mu.numpy()
    for (rows, columns), found in run_on_ranks(2, on_tile, tmp_path / "both", sample):
        np.testing.assert_allclose(found, whole[..., rows, columns], rtol=1e-5, atol=1e-4)


def test_quantiles_of_an_average_are_means_of_quantiles():
    level = torch.tensor([0.01, 0.3, 0.5, 0.9])
    for kind in (Normal, Logistic):
        parts = [kind(torch.randn(5).double(), torch.rand(5).double() + 0.1) for _ in range(4)]
        mean = torch.stack([part.quantile(level) for part in parts]).mean(0)
        torch.testing.assert_close(average(parts).quantile(level), mean, rtol=1e-12, atol=1e-12)


@given(st.floats(-1e3, 1e3, width=32), st.integers(2, 7))
def test_equal_parameters_stay_equal(lower, count):
    part = CensoredNormal(torch.ones(2), torch.ones(2), torch.tensor([lower, -torch.inf]))
    found = average([part] * count)
    assert torch.equal(found.lower, part.lower)
    assert torch.equal(found.mu, part.mu)


def test_members_are_averaged_one_by_one():
    found = average([Ensemble(torch.tensor([[1.0], [5.0]])), Ensemble(torch.tensor([[3.0], [1.0]]))])
    assert found.members.tolist() == [[2.0], [3.0]]


def test_the_crps_of_the_average_is_at_most_the_average_crps():
    """The CRPS is convex in the quantile function (Schulz & Lerch 2022)."""
    truth = torch.randn(1000).double()
    parts = [Normal(torch.randn(1000).double(), torch.rand(1000).double() + 0.1) for _ in range(3)]
    alone = torch.stack([part.crps(truth) for part in parts]).mean(0)
    assert (average(parts).crps(truth) <= alone + 1e-12).all()


def test_correctors_that_cannot_be_averaged_are_errors(file_of, toy):
    first = file_of("first", 1)
    logistic = file_of("logistic", 2, {"_target_": "models.networks.mlp.MLP", "width": 8, "head": "logistic"})
    day = file_of("day", 3, task=Task("toy", ["2t", "msl"], ["2t"], [24], ["lsm"]))
    late = file_of("late", 4, provenance=YEARS | {"train_years": [2000, 2010]})
    many = file_of("many", 5, provenance=YEARS | {"members": 50})
    regridded = file_of("regridded", 7, provenance=YEARS | {"regridding": "bilinear"})
    island = file_of("island", 6, static=toy(TASK, GRID, 1, seed=6).static)
    for path, sentence in (
        (logistic, "a Normal and a Logistic cannot be averaged; combine correctors with heads of one kind"),
        (day, r"day and .*first differ in their task; combine correctors of the same training data"),
        (late, r"late and .*first differ in their dates of training \(2000-2010 and 2000-2004\)"),
        (many, r"many and .*first differ in their number of members in training \(50 and 5\)"),
        (regridded, r"regridded and .*first differ in their regridding \(bilinear and None\)"),
        (island, r"island and .*first differ in their static fields; combine correctors of the same training data"),
        (first, "correctors lists a file twice"),
    ):
        with pytest.raises(InputError, match=sentence):
            combine([first, path])


def test_different_lower_bounds_are_an_error(file_of):
    """The mean of two bounds equals neither of them."""
    task = Task("rain", ["tp"], ["tp"], [24], ["lsm"])
    spec = {"_target_": "models.statistical.emos.EMOS", "family": "censored_normal", "seasonal": False}
    paths = [file_of(f"{lower}", seed, spec | {"lower": lower}, task) for seed, lower in enumerate((0, 0.1, 0))]
    with pytest.raises(InputError, match=r"0.1 and .*0 differ in their lower bound \(model.lower\); combine"):
        combine(paths[:2])


def test_different_provenances_are_merged(file_of):
    def provenance(run):
        counted = {"unfitted": {"cells": run, "of": 108}, "validation_crps": 0.1 * run}
        return YEARS | {"run": run, "data": f"store {run}"} | counted

    found = combine([file_of(f"{run}", run, provenance=provenance(run)) for run in range(1, 3)]).provenance
    parts = {part for group in found.pop("fits") for part in group["parts"]}
    assert parts >= {f"model.correctors.{k}.{part}" for k in range(2) for part in ("normalizer", "model")}
    dates = {"train_dates": [["2000-01-01", "2004-12-31"]], "val_dates": [["2005-01-01", "2005-12-31"]], "members": 5}
    assert found == dates | {"runs": [1, 2], "data": ["store 1", "store 2"], "unfitted": {"cells": 3, "of": 216}}


@pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")
def test_the_verb_combine(file_of, tmp_path, command):
    paths = [str(file_of(f"{seed}", seed)) for seed in range(2)]
    both = f"correctors=[{','.join(paths)}]"
    ended = command(tmp_path, "combine", f"output={tmp_path / 'both'}", both)
    assert ended.code == 0, ended.stderr
    assert "a committee of 2" in ended.stdout
    assert [len(Corrector.load(tmp_path / "both").model.correctors)] == [2]
    before = Path(paths[0]).read_bytes()
    ended = command(tmp_path, "combine", f"output={paths[0]}", both)
    assert (ended.code, ended.stderr) == (
        2, f"error: output={paths[0]} is one of the correctors; choose another output file\n"
    )  # fmt: skip
    assert Path(paths[0]).read_bytes() == before
    for wrong in (f"correctors=[{paths[0]}]", f"correctors={paths[0]}"):
        ended = command(tmp_path, "combine", f"output={tmp_path / 'never'}", wrong)
        assert ended.code == 2
        assert "error: correctors must be a list of two files or more" in ended.stderr
