"""A committee forecasts the average of its correctors, also weighted; the verb `combine` writes it to one file.

Weights are fitted on validation forecasts, and used only where they are better on other dates.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import standin_device
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from model_tiles import FIELDS
from ranks import run_on_ranks

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample, forecast_times
from data_pipeline.task import Task
from models.averages.combination import combine, set_weights
from models.averages.stacking import Cases, _best_weights, validation_cases, weigh
from models.combine import check_shares
from models.corrector import Corrector
from models.distribution import Bernstein, CensoredNormal, Ensemble, Normal, average
from models.parallel.domain import Domain
from models.protocol import claims

TASK = Task("toy", ["2t", "msl"], ["2t"], [24, 48], ["lsm"])
BOTH = Task("toy", ["2t", "msl"], ["2t", "msl"], [24, 48], ["lsm"])
GRID = Grid.regular(9, 12)
ROUNDING = 2.0**-20 * 300
"""Of a network's temperatures near 300 K in single precision."""
YEARS = {"train_dates": [["2000-01-01", "2004-12-31"]], "val_dates": [["2005-01-01", "2005-12-31"]], "members": 5}


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


@pytest.fixture
def files(file_of):
    """The files of three correctors of two targets."""
    return [file_of(f"{seed}", seed, task=BOTH) for seed in range(3)]


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


@given(st.floats(-1e3, 1e3, width=32), st.integers(2, 7))
def test_equal_parameters_stay_equal(lower, count):
    part = CensoredNormal(torch.ones(2), torch.ones(2), torch.tensor([lower, -torch.inf]))
    found = average([part] * count)
    assert torch.equal(found.lower, part.lower)
    assert torch.equal(found.mu, part.mu)


def test_members_are_averaged_one_by_one():
    found = average([Ensemble(torch.tensor([[1.0], [5.0]])), Ensemble(torch.tensor([[3.0], [1.0]]))])
    assert found.members.tolist() == [[2.0], [3.0]]


def test_correctors_that_cannot_be_averaged_are_errors(file_of, toy):
    first = file_of("first", 1)
    logistic = file_of("logistic", 2, {"_target_": "models.networks.mlp.MLP", "width": 8, "head": "logistic"})
    day = file_of("day", 3, task=Task("toy", ["2t", "msl"], ["2t"], [24], ["lsm"]))
    late = file_of("late", 4, provenance=YEARS | {"train_dates": [["2000-01-01", "2010-12-31"]]})
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
    spec = {"_target_": "models.statistical.emos.EMOS", "family": "censored_normal", "shared": False}
    paths = [
        file_of(f"{lower}", seed, spec | {"lower": lower, "power": 1.0}, task) for seed, lower in enumerate((0, 0.1, 0))
    ]
    with pytest.raises(InputError, match=r"0.1 and .*0 differ in their lower bound \(model.lower\); combine"):
        combine(paths[:2])


def test_different_provenances_are_merged(file_of):
    def provenance(run):
        counted = {"unfitted": {"cells": run, "of": 108}, "validation_crps": 0.1 * run}
        return YEARS | {"run": run, "data": f"store {run}"} | counted

    found = combine([file_of(f"{run}", run, provenance=provenance(run)) for run in range(1, 3)]).provenance
    parts = {part for group in found.pop("fits") for part in group["parts"]}
    assert parts >= {f"model.correctors.{k}.{part}" for k in range(2) for part in ("normalizer", "model")}
    assert found == YEARS | {"runs": [1, 2], "data": ["store 1", "store 2"], "unfitted": {"cells": 3, "of": 216}}


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


def as_batch(sample):
    return Sample(*(tensor[None] for tensor in sample))


@given(st.lists(st.integers(0, 9), min_size=2, max_size=5).filter(any))
def test_quantiles_of_a_weighted_average_are_weighted_means_of_quantiles(numbers):
    weights = torch.tensor(numbers).double() / sum(numbers)
    level, generator = torch.tensor([0.01, 0.3, 0.9]).double(), torch.Generator().manual_seed(len(numbers))

    def draw(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    for parts in (
        [Normal(draw(5), draw(5) + 0.1) for _ in numbers],
        [Bernstein(draw(4, 5).cumsum(0)) for _ in numbers],
    ):
        expected = (weights[:, None, None] * torch.stack([part.quantile(level) for part in parts])).sum(0)
        torch.testing.assert_close(average(parts, weights).quantile(level), expected, rtol=1e-9, atol=1e-9)


def normal_cases(generator, errors, starts, per_start=400, folds=2):
    """Cases of normal forecasts with the spread 1 and independent errors of these sizes, one row for each start."""
    sizes = torch.tensor(errors).double()  # (starts, K)
    truth = torch.zeros(starts, per_start).double()
    means = torch.randn(len(errors[0]), starts, per_start, generator=generator, dtype=torch.float64)
    means = means * sizes.T[..., None]
    parts = tuple(Normal(mean.flatten(), torch.ones(truth.numel()).double()) for mean in means)
    fold = (torch.arange(starts) * folds // starts)[:, None].expand(truth.shape).flatten()
    area = torch.rand(truth.numel(), generator=generator, dtype=torch.float64) + 0.5
    return Cases(parts, truth.flatten(), area, fold)


def test_weights_of_independent_errors_are_their_inverse_variances():
    """With a fixed spread, the CRPS of a normal forecast increases with the variance of its error."""
    sizes = [0.5, 1.0, 1.5]
    (found,) = weigh([normal_cases(torch.Generator().manual_seed(0), [sizes] * 40, 40)])
    inverse = 1 / np.square(sizes)
    np.testing.assert_allclose(found.weights, inverse / inverse.sum(), atol=0.015)
    assert found.choice == "fitted"
    assert found.crps < min(found.tried[name] for name in ("equal", "0", "1", "2"))


def test_fitted_weights_are_the_best_of_a_scan():
    cases = normal_cases(torch.Generator().manual_seed(1), [[0.7, 1.1]] * 4, 4, per_start=50)
    scan = torch.linspace(0, 1, 1001).double()
    scores = torch.stack([cases.mean(cases.scores(torch.stack([value, 1 - value]))) for value in scan])
    assert float(_best_weights(cases)[0]) == pytest.approx(float(scan[scores.argmin()]), abs=1.1e-3)


def test_weights_that_fail_on_other_dates_are_not_taken():
    """In each half another corrector is better: weights of one half are the wrong ones for the other."""
    (found,) = weigh([normal_cases(torch.Generator().manual_seed(2), [[0.2, 2.0]] * 4 + [[2.0, 0.2]] * 4, 8)])
    assert found.tried["fitted"] > found.tried["equal"]
    assert found.weights == (0.5, 0.5)
    (found,) = weigh([normal_cases(torch.Generator().manual_seed(2), [[0.1, 30.0]] * 8, 8)])
    assert found.weights == (1, 0)
    with pytest.raises(InputError, match="need two start dates or more"):
        weigh([normal_cases(torch.Generator(), [[1.0, 1.0]], 1)])


def test_lead_times_with_few_cases_get_the_weights_of_all():
    """Weights of four cases at each of 60 lead times are noise, those of all cases are not."""
    generator = torch.Generator().manual_seed(4)
    found = weigh([normal_cases(generator, [[0.7, 1.0]] * 2, 2, per_start=2) for _ in range(60)])
    together = [one.weights for one in found if one.choice == "all leads"]
    assert together
    inverse = np.array([1 / 0.49, 1.0])
    np.testing.assert_allclose(together[0], inverse / inverse.sum(), atol=0.15)


class Steep(Normal):
    """A score that is finite, with an infinite derivative."""

    def crps(self, truth, fair=False):
        return super().crps(truth, fair) + (0 * self.mu).sqrt()


def test_weights_without_a_gradient_are_not_equal_weights():
    cases = normal_cases(torch.Generator().manual_seed(0), [[0.5, 1.0]] * 4, 4)
    steep = replace(cases, parts=tuple(Steep(part.mu, part.sigma) for part in cases.parts))
    with pytest.raises(InputError, match="the CRPS has no finite gradient by the weights; leave out weights"):
        weigh([steep])


def test_cases_are_the_verifiable_cells(files, toy):
    """Their score is the mean over them, by area, of the score of averaged parameters."""
    data = toy(BOTH, GRID, 6, seed=9)
    data.samples[0].target[1, 2:5] = torch.nan
    data.samples[3].mask[0, :, 7] = False
    correctors = [Corrector.load(path) for path in files]
    batch, third = next(batches(data, 6)), torch.full((3,), 1 / 3, dtype=torch.float64)
    with torch.no_grad():
        forecasts = [corrector(batch) for corrector in correctors]
    mu, sigma = (torch.stack([getattr(one, name).double() for one in forecasts]).mean(0) for name in ("mu", "sigma"))
    score = Normal(mu, sigma).crps(batch.target.double()).numpy()
    area = np.broadcast_to(np.array(GRID.weights)[:, None], score.shape)
    for target, of_target in enumerate(validation_cases(correctors, data)):
        for lead, cases in zip(BOTH.lead_times, of_target, strict=True):
            known = np.isfinite(score) & batch.mask[:, list(BOTH.target_channels)].numpy()
            known &= (batch.lead_time == lead).numpy()[:, None, None, None]
            known[:, 1 - target] = False
            assert known.sum() == len(cases.truth)
            expected = np.average(score[known], weights=area[known])
            assert float(cases.mean(cases.scores(third))) == pytest.approx(expected, abs=ROUNDING)


def cases_on_standin(rank, files, toy):
    standin_device.install()
    correctors = [Corrector.load(path).to(standin_device.NAME) for path in files]
    return validation_cases(correctors, toy(BOTH, GRID, 4, seed=9), standin_device.NAME)


def test_cases_of_another_device_are_those_of_the_cpu(files, toy):
    (found,) = run_on_ranks(1, cases_on_standin, files, toy, fresh=True)
    expected = validation_cases([Corrector.load(path) for path in files], toy(BOTH, GRID, 4, seed=9))
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    for one, other in zip(
        *([cases for of_target in one for cases in of_target] for one in (found, expected)), strict=True
    ):
        assert torch.equal(one.truth, other.truth)
        torch.testing.assert_close(one.scores(third), other.scores(third), rtol=0, atol=ROUNDING)


def test_forecasts_that_are_not_finite_are_refused(files, toy):
    correctors = [Corrector.load(path) for path in files]
    torch.nn.init.constant_(next(correctors[1].parameters()), torch.nan)
    with pytest.raises(InputError, match="a forecast of the parts is not finite"):
        weigh(validation_cases(correctors, toy(BOTH, GRID, 4, seed=9))[0])


def test_some_cells_of_each_forecast_are_drawn(files, toy, monkeypatch):
    monkeypatch.setattr("models.averages.stacking.VALUES", 60)
    correctors = [Corrector.load(path) for path in files[:2]]
    data = toy(BOTH, GRID, 6, seed=9)
    starts, forecasts = len(forecast_times(data)[0].unique()), len(data)
    drawn = sum(len(cases.truth) for cases in validation_cases(correctors, data)[0])
    assert drawn == 60 // starts * forecasts < forecasts * 9 * 12


def test_each_target_and_lead_time_has_its_own_weights(files, toy, tmp_path):
    made = combine(files[:2], [0.25, 0.75])
    assert made.spec["weights"] == [[[0.25] * 2] * 2, [[0.75] * 2] * 2]
    set_weights(made, torch.tensor([[[1.0, 0.25], [0.5, 0.5]], [[0.0, 0.75], [0.5, 0.5]]]))
    made.save(tmp_path / "both")
    committee = Corrector.load(tmp_path / "both")
    batch = as_batch(toy(BOTH, GRID, 1).samples[0])._replace(lead_time=torch.tensor([24]))
    with torch.no_grad():
        one, two = (Corrector.load(path)(batch).mu.double() for path in files[:2])
        found = committee(batch).mu.double()
    torch.testing.assert_close(found[:, 0], one[:, 0], rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(found[:, 1], 0.25 * one[:, 1] + 0.75 * two[:, 1], rtol=1e-6, atol=1e-4)
    with torch.no_grad():
        later = [corrector(batch._replace(lead_time=torch.tensor([48]))).mu for corrector in committee.model.correctors]
        found = committee(batch._replace(lead_time=torch.tensor([48]))).mu
    torch.testing.assert_close(found, (later[0] + later[1]) / 2, rtol=1e-6, atol=1e-4)


def test_shares_of_the_command_line():
    assert check_shares([2, 1.0, 1], 3) == [0.5, 0.25, 0.25]
    for wrong in ([1, 1], [1, -1, 1], [0, 0, 0], [1, 1, float("inf")], [1, 1, True], "equal", 3, {"a": 1}):
        with pytest.raises(InputError, match="weights must be null, validation, or a list of 3 numbers, one for each"):
            check_shares(wrong, 3)
