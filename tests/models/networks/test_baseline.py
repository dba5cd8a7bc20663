"""Baselines of networks: EMOS, or the error climate, which numpy computes once more, and its weights."""

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from specs import SPECS

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector
from models.distribution import CensoredLogistic
from models.networks.baseline import CASES_OF_CLIMATE
from models.networks.climate_weights import LeftOutCase, fit_weights, least_squares
from models.statistical.predictors import SMALLEST_SPREAD

GRID = Grid.regular(8, 12)
TASK = Task("toy", ["sst", "2t", "tp"], ["2t", "tp"], [24, 48], ["lsm"])
ALONE = {"shared": False}


def fit_corrector(spec, toy):
    """A corrector that is fitted and not trained."""
    torch.manual_seed(0)
    data = toy(TASK, GRID, 40)
    corrector = Corrector(TASK, GRID, spec, data.static)
    corrector.fit(data)
    return corrector.double().eval()


def batch_of(toy):
    """Forecasts outside the training data, in float64."""
    sample = next(batches(toy(TASK, GRID, 4, 5, seed=3), 4))
    return sample._replace(**{name: getattr(sample, name).double() for name in ("ensemble", "static", "target")})


@pytest.mark.parametrize(
    ("name", "options"),
    [("unet", ALONE), *((name, ALONE | {"seasonal": False, "scale": "log"}) for name in ("mlp", "transformer"))],
)
def test_an_untrained_network_equals_emos(name, options, toy):
    """Network and EMOS are fitted to the same samples."""
    emos, sample = fit_corrector(SPECS["emos"] | options, toy), batch_of(toy)
    network = fit_corrector(SPECS[name] | {"baseline": options}, toy)
    with torch.no_grad():
        normal, found = network.normalizer(sample), network(sample)
        expected = emos.model(normal)
        start, unit = network.model.head.start(normal), network.normalizer.target_scaling[1]
    mu = expected.scored(lambda part: part.mu)
    spread = expected.scored(lambda part: part.sigma * part.standard.std)
    torch.testing.assert_close(start[0], mu)
    torch.testing.assert_close(start[1], (spread**2 + SMALLEST_SPREAD**2).sqrt())
    torch.testing.assert_close(found.mean, emos(sample).mean, rtol=1e-6, atol=1e-6)
    # The spread of a square is not the square of the spread.
    assert float((found.std / unit - expected.std)[:, 0].abs().max()) < 2 * SMALLEST_SPREAD


def seasonal_terms(sample):
    """1, cosine and sine of the year, from the calendar."""
    days = (float(sample.init_time) / 3600 + float(sample.lead_time)) / 24
    first = np.datetime64("1970-01-01") + np.timedelta64(round(days * 86400), "s")
    day = (first - first.astype("datetime64[Y]")) / np.timedelta64(1, "D") + 1
    return [1, np.cos(2 * np.pi * day / 365.25), np.sin(2 * np.pi * day / 365.25)]


def climate_by_numpy(samples, new, target, cell, weights):
    """Mean and spread of the climate baseline in one cell, from the normalised samples of one lead time.

    The error of the ensemble mean is regressed on 1, cosine and sine of the year; what remains has the size R. The same
    regression of the ensemble mean is its climate.
    """
    case = (..., cell[0], cell[1])
    members = [np.asarray(s.ensemble[:, TASK.target_channels[target]][case], float) for s in samples]
    mean = np.array([x.mean() for x in members])
    error = np.array([float(s.target[target][case]) for s in samples]) - mean
    terms = np.array([seasonal_terms(s) for s in samples])
    solution, *_ = np.linalg.lstsq(terms, error, rcond=None)
    climate, *_ = np.linalg.lstsq(terms, mean, rcond=None)
    size = np.sqrt(np.mean((error - terms @ solution) ** 2))
    x, lam, kappa, alpha, beta, gamma = np.asarray(new.ensemble[:, TASK.target_channels[target]][case], float), *weights
    departure = x.mean() - seasonal_terms(new) @ climate
    moved = x.mean() + lam * (seasonal_terms(new) @ solution) - kappa * departure
    return moved, np.sqrt(alpha * x.var(ddof=1) + beta * size**2 + gamma)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_an_untrained_network_starts_at_the_error_climate(name, training, toy):
    """In training, the error climate of the other years. Tests below check the weights of the mixture."""
    data = toy(TASK, GRID, 160)  # two calendar years, 40 cases of each in a cell and lead time
    torch.manual_seed(0)
    corrector = Corrector(TASK, GRID, SPECS[name], data.static)
    corrector.fit(data)
    weights = (corrector.model.head or corrector.model).start.weights
    assert bool((weights[0] > 0).all() and (weights[3:].sum(0) > 0).all())
    new, normal = data.samples[-3], [corrector.normalizer(batch) for batch in batches(data, 1)]
    with torch.no_grad():
        found = corrector.train(training).model(corrector.normalizer(next(batches([new], 1))))
    samples = [type(each)(*(field[0] for field in each)) for each in normal]
    new = samples[-3]
    year = [1970 + int(float(s.init_time + 3600 * s.lead_time) // (365.2425 * 86400)) for s in samples]
    own = [(s, y) for s, y in zip(samples, year, strict=True) if s.lead_time == new.lead_time]
    known = [s for s, y in own if not (training and y == year[-3])]
    assert len(known) < 80 if training else len(known) == 80
    for target, cell in ((0, (2, 3)), (1, (5, 11))):
        own = weights[:, TASK.lead_times.index(int(new.lead_time)), target].tolist()
        mean, std = climate_by_numpy(known, new, target, cell, own)
        assert float(found.mean[0, target, *cell]) == pytest.approx(mean, rel=1e-3, abs=1e-3)
        assert float(found.std[0, target, *cell]) == pytest.approx(std, rel=2e-3)


def test_members_get_mean_and_spread_of_the_error_climate(toy):
    """With attention. Without it each member is corrected like the mean."""
    data = toy(TASK, GRID, 80)
    sample = next(batches(toy(TASK, GRID, 4, 5, seed=3), 4))
    found = {}
    for name, spec in (
        ("climate", SPECS["transformer"]), ("members", SPECS["transformer"] | {"head": "members"}),
        ("independent", SPECS["transformer_independent"]),
    ):  # fmt: skip
        corrector = Corrector(TASK, GRID, spec, data.static)
        corrector.fit(data)
        with torch.no_grad():
            found[name] = corrector.eval().model(normal := corrector.normalizer(sample))
    raw = normal.ensemble[:, :, list(TASK.target_channels)].movedim(1, 0)
    torch.testing.assert_close(found["members"].mean, found["climate"].mean, rtol=1e-5, atol=1e-5)
    # A spread near zero is not stretched: `SMALLEST_SPREAD` is added to it.
    stretched = found["climate"].std * raw.std(0) / (raw.std(0) ** 2 + SMALLEST_SPREAD**2).sqrt()
    torch.testing.assert_close(found["members"].members.std(0), stretched, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["independent"].mean, found["climate"].mean, rtol=1e-5, atol=1e-5)
    slope = 1 - corrector.model.start.weights[1, [TASK.lead_times.index(int(lead)) for lead in sample.lead_time]]
    expected = slope[:, :, None, None] * raw.std(0)
    torch.testing.assert_close(found["independent"].members.std(0), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_with_few_cases_a_network_starts_at_the_raw_ensemble(name, toy):
    """In every cell with fewer cases than it takes; the corrector's report says so if no cell has enough."""
    data = toy(TASK, GRID, 2 * CASES_OF_CLIMATE)
    for sample in data.samples[:2]:  # one case of each lead time
        sample.target[:, 0] = torch.nan
    few = toy(TASK, GRID, 2 * CASES_OF_CLIMATE - 2)
    sample = next(batches(toy(TASK, GRID, 4, 5, seed=3), 4))
    found = {}
    for key, samples, option in (("climate", data, "climate"), ("raw", data, None), ("few", few, "climate")):
        corrector = Corrector(TASK, GRID, SPECS[name] | {"baseline": option}, data.static)
        corrector.fit(samples)
        with torch.no_grad():
            found[key] = corrector.eval()(sample).mean
        assert any("model.baseline=climate needs 10 training cases" in n for n in corrector.notes) == (key == "few")
        if key == "few":
            raw = Corrector(TASK, GRID, SPECS["raw"], data.static)
            torch.testing.assert_close(found[key], raw(sample).mean, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(found["climate"][:, :, 0], found["raw"][:, :, 0], rtol=1e-6, atol=1e-4)
    assert float((found["climate"] - found["raw"])[:, :, 1:].abs().mean()) > 0.3  # the bias of the toy data is 1


def test_a_bounded_baseline_and_head_share_the_bound(toy):
    """EMOS and network have the bound 0 mm and equal probabilities below it."""
    task, plain = Task("rain", ["tp"], ["tp"], [24]), {"power": 1.0}
    options = ALONE | {"family": "censored_logistic", "lower": 0.0, "seasonal": False}
    data = toy(task, GRID, 40)
    spec = SPECS["mlp"] | {"head": "censored_logistic", "baseline": options} | plain
    corrector = Corrector(task, GRID, spec, data.static)
    corrector.fit(data)
    emos = Corrector(task, GRID, SPECS["emos"] | options | plain, data.static)
    emos.fit(data)
    sample = next(batches(data, 4))
    with torch.no_grad():
        found, expected = corrector.eval()(sample), emos.eval()(sample)
    assert isinstance(found, CensoredLogistic)
    torch.testing.assert_close(found.lower.expand_as(expected.mu), expected.lower.expand_as(expected.mu))
    torch.testing.assert_close(found.mu, expected.mu, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.crps(sample.target), expected.crps(sample.target), rtol=1e-2, atol=1e-3)


CELLS = 3, 4


def weights_of(cases, leads=1):
    """Weights of cases whose sample is (LeftOutCase, lead index)."""
    return fit_weights(
        cases, lambda sample: sample[0], torch.ones(cases[0][0].error.shape[-2:]), lambda sample: sample[1], leads,
        lambda sums: sums,
    )  # fmt: skip


def drawn_cases(generator, count, bias=0.0, skill=1.0, alpha=0.5, beta=2.0, gamma=0.3):
    """Cases whose error has this bias, slope 1 - κ = `skill` and variance α s² + β R² + γ, (count, 1, 3, 4)."""
    shape = (count, 1, *CELLS)
    spread, size = 0.2 + torch.rand(shape, generator=generator), 0.3 + torch.rand(shape[1:], generator=generator)
    past, departure = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    noise = torch.randn(shape, generator=generator) * (alpha * spread**2 + beta * size**2 + gamma).sqrt()
    error = bias * past - (1 - skill) * departure + noise
    return LeftOutCase(*(x.double() for x in (error, past, departure, spread, size.expand(shape))))


@pytest.mark.parametrize(("bias", "skill"), [(0.7, 0.9), (0.0, 0.2), (1.0, 1.0)])
def test_weights_are_those_of_the_law_that_made_the_cases(bias, skill):
    found = weights_of(
        [(drawn_cases(torch.Generator().manual_seed(1), 20000, bias, skill), torch.zeros(20000, dtype=torch.long))]
    )
    lam, kappa, alpha, beta, gamma = found[:, 0, 0].tolist()
    assert lam == pytest.approx(bias, abs=0.02)
    assert kappa == pytest.approx(1 - skill, abs=0.02)
    assert (alpha, beta, gamma) == tuple(pytest.approx(one, abs=0.08) for one in (0.5, 2.0, 0.3))


def test_weights_of_a_lead_time_and_target_come_from_its_own_cases_in_any_batches():
    generator = torch.Generator().manual_seed(2)
    laws = (((0.8, 0.9), (0.3, 0.5)), ((0.1, 0.2), (0.6, 1.0)))
    kinds = [[drawn_cases(generator, 40, bias, skill) for bias, skill in row] for row in laws]
    rows = [LeftOutCase(*(torch.cat(pair, 1) for pair in zip(*row, strict=True))) for row in kinds]
    everything = LeftOutCase(*(torch.cat(pair) for pair in zip(*rows, strict=True)))
    lead = torch.arange(2).repeat_interleave(40)
    order = torch.randperm(80, generator=generator)
    parts = [(LeftOutCase(*(x[some] for x in everything)), lead[some]) for some in order.split(7)]
    found = weights_of(parts, 2)
    for k, row in enumerate(kinds):
        for target, alone in enumerate(row):
            torch.testing.assert_close(
                found[:, k, target], weights_of([(alone, torch.zeros(40, dtype=torch.long))])[:, 0, 0]
            )


def test_without_cases_the_raw_ensemble_stays():
    case, zero = drawn_cases(torch.Generator().manual_seed(3), 30), torch.zeros(30, dtype=torch.long)
    case.error[:] = torch.nan
    assert weights_of([(case, zero)], 2)[:, :, 0].T.tolist() == [[0, 0, 1, 0, 0]] * 2


def test_cells_without_errors_decide_neither_alpha_nor_beta():
    """A desert without rain has size 0, spread 0 and error 0, so no constant variance fits it."""
    case, zero = drawn_cases(torch.Generator().manual_seed(4), 2000, gamma=0.0), torch.zeros(2000, dtype=torch.long)
    desert = LeftOutCase(*(torch.zeros_like(x) for x in case))
    both = LeftOutCase(*(torch.cat([a, b], -1) for a, b in zip(case, desert, strict=True)))
    _, _, alpha, beta, gamma = weights_of([(both, zero)])[:, 0, 0].tolist()
    assert (alpha, beta) == (pytest.approx(0.5, abs=0.1), pytest.approx(2.0, abs=0.1))
    assert gamma < 1e-3


def test_standardised_truth_leaves_the_slope_as_it_is():
    """Where the mean error is zero in every cell, the bias of the other years is the opposite of the case."""
    generator = torch.Generator().manual_seed(5)
    x, noise = (torch.randn(30, 1, 20, 20, generator=generator, dtype=torch.float64) for _ in range(2))
    error = noise - 0.8 * x
    error, x = (y - y.mean(0) for y in (error, x))
    others = -error / 29
    case = LeftOutCase(error, others, x * 30 / 29, torch.ones_like(x), torch.ones_like(x))
    lam, kappa = weights_of([(case, torch.zeros(30, dtype=torch.long))])[:2, 0, 0].tolist()
    assert lam == 0
    assert kappa == pytest.approx(float(-(error * x).sum() / x.square().sum()))
    assert kappa == pytest.approx(0.8, abs=0.02)


def test_least_squares_without_negative_numbers_are_those_of_scipy():
    generator = np.random.default_rng(0)
    problems = [(generator.normal(size=(20, 3)) + 1, generator.normal(size=20)) for _ in range(40)]
    matrices = torch.tensor(np.array([terms.T @ terms for terms, _ in problems]))
    vectors = torch.tensor(np.array([terms.T @ truth for terms, truth in problems]))
    expected = [nnls(terms, truth)[0] for terms, truth in problems]
    np.testing.assert_allclose(least_squares(matrices, vectors), expected, atol=1e-9)
