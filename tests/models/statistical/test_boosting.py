"""Boosted EMOS: against least squares, known predictors, and its promises as a model."""

import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Ensemble, Normal
from models.statistical import regression as regression_module
from models.statistical.boosted_emos import BoostedEMOS
from models.statistical.boosting import (
    Boosting,
    CaseBlock,
    best_step,
    fit_boosted,
    predict_boosted,
    products,
    total_score,
)
from models.statistical.emos_regression import EMOSCases, predict_emos
from models.statistical.predictors import annual_harmonics
from models.statistical.regression import Regression

LOG = Regression(scale="log")
GRID = Grid.regular(3, 4)
TASK = Task("test", inputs=["msl", "2t", "tcc"], targets=["2t"], lead_times=[24, 48])
FAMILIES = ("normal", "logistic", "censored_normal", "censored_logistic", "truncated_normal")


def cases(count=400, cells=3, idle=8, seed=0):
    """Predictors (mean, log spread, one that helps μ, one that helps σ, `idle` that do not), truth and its law."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(4 + idle, count, cells, generator=g, dtype=torch.float64)
    x[1] *= 0.3
    law = Normal(1 + 2 * x[0] + 0.7 * x[2], torch.exp(0.2 + x[1] + 0.4 * x[3]))
    return list(x), law.mu + law.sigma * torch.randn(count, cells, generator=g, dtype=torch.float64), law


def score(form, coefficients, predictors, truth, lower=None):
    return float(predict_boosted(form, coefficients[:, None], predictors, lower).crps(truth).mean())


def test_it_finds_the_predictors_that_matter_and_nearly_the_law():
    x, y, _ = cases(cells=20)
    fresh, truth, law = cases(cells=20, seed=1)
    found = fit_boosted(Boosting(LOG), x, y)
    mu, log_sigma = found.unflatten(0, (2, -1))
    expected = torch.tensor([1, 2, 0, 0.7, 0])
    torch.testing.assert_close(mu[:5].mean(1), expected.double(), rtol=0, atol=0.05)
    torch.testing.assert_close(log_sigma[:5].mean(1), torch.tensor([0.2, 0, 1, 0, 0.4]).double(), rtol=0, atol=0.2)
    assert (mu[5:].abs() < 0.25).all()
    emos = EMOSCases(x[0], x[1].exp(), y).fit_cells(LOG)
    plain = float(predict_emos(LOG, emos[:, None], fresh[0], fresh[1].exp()).crps(truth).mean())
    best = float(law.crps(truth).mean())
    assert best < score(LOG, found, fresh, truth) < best + 0.15 * (plain - best)


def test_many_small_steps_end_at_the_regression_on_all_predictors():
    x, y, _ = cases(idle=2)
    boosting = Boosting(LOG, learning_rate=0.5, max_steps=300)
    monster = LOG.fit([one := torch.ones(1, 1).double(), *(v.T for v in x)], [one, *(v.T for v in x)], y.T, y.T * 0 + 1)
    block = CaseBlock.of([v.T for v in x], y.T, y.T * 0 + 1, torch.zeros(3, 400), None)
    torch.testing.assert_close(block.fit(boosting, (0, 1), 300), monster, rtol=0, atol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("loss", ["crps", "likelihood"])
def test_every_step_lowers_the_score_of_every_family(family, loss):
    form, (x, y, _) = Regression(family, "log", loss), cases()
    lower = torch.full((3,), -1.0) if form.bounded else None
    y = y.clamp(min=-1) if form.bounded else y
    boosting, bound = Boosting(form, max_steps=30), None if lower is None else lower[:, None].expand(3, 400)
    block = CaseBlock.of([v.T for v in x], y.T, y.T * 0 + 1, torch.zeros(3, 400), bound)
    curve = torch.stack([value.mean(2)[:, 0] for _, value in block.iterate(boosting, (0, 1), block.weight, 30)])
    assert (curve.diff(dim=0) < 0).all()
    # What is returned is what the walk had: in units of the predictors as given.
    found = predict_boosted(form, block.fit(boosting, (0, 1), 30)[:, None], x, lower)
    torch.testing.assert_close(form.loss(found, y).mean(0), curve[-1])


def test_the_first_step_is_the_largest_promise_by_finite_differences():
    """Along every predictor by itself: slope and curvature of the score by differences, a `rate` of the way."""
    x, y, _ = cases(count=60, cells=1)
    boosting, P = Boosting(LOG, learning_rate=0.4), len(x)
    block = CaseBlock.of([v.T for v in x], y.T, y.T * 0 + 1, torch.zeros(1, 60), None)
    before, after = (block.fit(boosting, (0, 1), steps)[:, 0] for steps in (0, 1))
    unit = torch.cat([torch.ones(1), torch.stack([v.std(unbiased=False) for v in x])]).double().repeat(2)

    def crps(theta):
        return score(LOG, theta[:, None], x, y)

    changed = (after - before).abs() > 1e-9
    changed[[0, 1 + P]] = False  # constants absorb the predictors' means
    (chosen,) = changed.nonzero()[:, 0].tolist()
    decrease = []
    for p in range(2 + 2 * P):
        mean = torch.zeros(2 + 2 * P, dtype=torch.float64)
        mean[p] = 1 / unit[p]
        if p % (1 + P):
            mean[p - p % (1 + P)] = -float(x[p % (1 + P) - 1].mean()) / unit[p]
        slope = (crps(before + 1e-5 * mean) - crps(before - 1e-5 * mean)) / 2e-5
        decrease.append(abs(slope))
    # The curvatures by μ and log σ differ, so the largest slope is compared within the parameter that was chosen.
    half = range(1, 1 + P) if chosen <= P else range(2 + P, 2 + 2 * P)
    assert chosen == max(half, key=lambda p: decrease[p])
    assert crps(after) < crps(before)


def test_noise_is_left_alone():
    """Held-out cases gain nothing from predictors that know nothing: nearly all that is left is EMOS."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(12, 200, 40, generator=g, dtype=torch.float64)
    y = x[0] + torch.exp(x[1] / 3) * torch.randn(200, 40, generator=g, dtype=torch.float64)
    found = fit_boosted(Boosting(LOG), list(x), y)
    assert int((found.unflatten(0, (2, -1))[:, 3:] != 0).sum(1).max()) <= 1


def test_the_number_of_steps_is_that_of_the_smallest_sum():
    curve = torch.tensor([[3.0, 2, 2, 9], [1, 1, 1, 0], [torch.nan, torch.nan, torch.nan, torch.nan]])

    def best(weight, curve=curve):
        return best_step(total_score(curve, torch.tensor(weight)), Boosting(LOG))

    assert best([1.0, 1, 1]) == 1  # the first of two
    assert best([0.01, 1, 1]) == 3  # cells count by their weight
    curve[0, 1:] = torch.inf
    assert best([1.0, 1, 1]) == 0
    assert best([1.0, 1], torch.full((2, 5), torch.nan)) == 0


def test_folds_are_stretches_of_time_that_the_others_predict():
    """The held-out score is that of coefficients fitted to the other stretches, by hand."""
    x, y, _ = cases(count=90, cells=2, idle=0)
    boosting, fold = Boosting(LOG, max_steps=4, folds=3), torch.arange(90) // 30
    block = CaseBlock.of([v.T for v in x], y.T, y.T * 0 + 1, fold.expand(2, 90), None)
    expected = torch.zeros(2, dtype=torch.float64)
    for k in range(3):
        # Standardised alike, for the steps depend on the units a little.
        weight = (fold != k).double().expand(2, 90)[:, None]
        *_, (theta, values) = block.iterate(boosting, (0, 1), weight, 4)
        expected += values[:, 0, fold == k].sum(1) / 90
        assert theta.shape == (2, 1, 2, 5)
    torch.testing.assert_close(block.held_out_scores(boosting, (0, 1))[:, 4], expected)


def test_missing_cases_are_as_if_they_had_never_been():
    x, y, _ = cases(count=90, idle=1)
    holed, hidden = y.clone(), [v.clone() for v in x]
    holed[10:20, 1] = torch.nan
    hidden[2][10:20, 1], hidden[3][10:20, 1] = torch.inf, torch.nan
    boosting = Boosting(LOG, max_steps=8)
    found, other = fit_boosted(boosting, x, holed), fit_boosted(boosting, hidden, y)
    torch.testing.assert_close(found, other, rtol=0, atol=1e-12)
    torch.testing.assert_close(found[:, [0, 2]], fit_boosted(boosting, x, y)[:, [0, 2]], rtol=0, atol=1e-12)
    rest = torch.cat([torch.arange(10), torch.arange(20, 90)])
    block = CaseBlock.of([v[rest, 1:2].T for v in x], y[rest, 1:2].T, torch.ones(1, 80), rest[None], None)
    steps = int((found[[3, 4], 1] != 0).any()) * 8
    whole = CaseBlock.of([v[:, 1:2].T for v in x], holed[:, 1:2].T, torch.ones(1, 90), rest[None], None)
    torch.testing.assert_close(block.fit(boosting, (0, 1), steps), whole.fit(boosting, (0, 1), steps))


def test_cells_without_truth_are_nan_and_constants_have_no_coefficient(monkeypatch):
    x, y, _ = cases(count=60, idle=1)
    y[:, 1] = torch.nan
    x[4] = torch.full_like(y, 273.15)
    found = fit_boosted(Boosting(LOG, max_steps=10), x, y)
    assert found[:, 1].isnan().all()
    assert found[:, [0, 2]].isfinite().all()
    assert (found[[5, 11]][:, [0, 2]] == 0).all()
    monkeypatch.setattr(regression_module, "CASES_AT_ONCE", 60)  # cell by cell
    torch.testing.assert_close(
        fit_boosted(Boosting(LOG, max_steps=10), x, y), found, equal_nan=True, rtol=0, atol=1e-12
    )


def test_shared_coefficients_are_those_of_the_pooled_cells():
    x, y, _ = cases(count=120, idle=2)
    boosting = Boosting(LOG, max_steps=20)
    shared = fit_boosted(boosting, x, y, shared=True)
    pooled = fit_boosted(boosting, [v.reshape(-1, 1) for v in x], y.reshape(-1, 1))
    torch.testing.assert_close(shared, pooled, rtol=0, atol=1e-9)
    double = fit_boosted(boosting, x, y, shared=True, weight=torch.tensor([2.0, 1, 0]))
    twice = fit_boosted(boosting, [v[:, [0, 0, 1]] for v in x], y[:, [0, 0, 1]], shared=True)
    torch.testing.assert_close(double, twice, rtol=0, atol=1e-9)


def test_products_are_all_of_degree_two():
    terms = list(torch.randn(4, 5, generator=torch.Generator().manual_seed(3)))
    matrix = torch.stack(terms)[:, None] * torch.stack(terms)
    rows, columns = torch.triu_indices(4, 4)
    torch.testing.assert_close(torch.stack(products(terms)), matrix[rows, columns])


def batch(count=160, members=6, seed=0):
    """Forecasts whose error is told by another variable, in winter by one half."""
    g = torch.Generator().manual_seed(seed)
    C = len(TASK.inputs)
    centre = torch.randn(count, 1, C, *GRID.shape, generator=g)
    ensemble = centre + 0.4 * torch.randn(count, members, C, *GRID.shape, generator=g)
    init, lead = 86400 * 23 * torch.arange(count), torch.tensor([24, 48]).repeat(count)[:count]
    cos = annual_harmonics(init, lead)[:, 0, None, None]
    error = (0.6 + 0.5 * cos) * ensemble[:, :, 0].mean(1) + 0.3 * torch.randn(count, *GRID.shape, generator=g)
    truth = (ensemble[:, :, 1].mean(1) + error)[:, None]
    mask, static = torch.ones(count, C, *GRID.shape, dtype=torch.bool), torch.zeros(count, 3, *GRID.shape)
    static[:, 0] = torch.linspace(-1, 1, 12).view(GRID.shape)
    return Sample(ensemble, mask, static, truth, init, lead)


def crps(model, sample):
    with torch.no_grad():
        return float(model(sample).crps(sample.target).mean())


@pytest.mark.parametrize("family", FAMILIES)
def test_unfitted_is_the_raw_ensemble(family):
    sample = batch(6)
    model = BoostedEMOS(TASK, GRID, family, lower=-1e4 if "normal" != family != "logistic" else None)
    raw = Ensemble(sample.ensemble[:, :, [1]].movedim(1, 0))
    torch.testing.assert_close(model(sample).mean, raw.mean)
    torch.testing.assert_close(model(sample).std, raw.std, rtol=5e-3, atol=0)


def test_it_learns_from_other_inputs_and_with_products_from_the_season():
    train, test = batch(seed=1), batch(seed=2)
    raw, plain, full = BoostedEMOS(TASK, GRID), BoostedEMOS(TASK, GRID), BoostedEMOS(TASK, GRID, products=True)
    plain.fit([train])
    full.fit(Sample(*(tensor[i : i + 7] for tensor in train)) for i in reversed(range(0, 160, 7)))
    assert crps(full, test) < 0.75 * crps(plain, test) < 0.7 * crps(raw, test)
    assert crps(full, test) < 0.22, "with the truth's own law: 0.17"


def test_a_shared_model_knows_the_static_fields():
    train, test = (b._replace(target=b.target + 2 * b.static[:, :1]) for b in (batch(seed=3), batch(seed=4)))
    model = BoostedEMOS(TASK, GRID, products=True, shared=True)
    model.fit([train])
    assert model.coefficients.shape == (2, 2 + 2 * (6 + 2 + 3 + 15), 1, 1, 1)
    assert crps(model, test) < 0.3


def test_a_bound_follows_the_units():
    sample = batch(seed=5)
    sample = sample._replace(target=sample.target.clamp(min=0))
    ours, theirs = (BoostedEMOS(TASK, GRID, "censored_normal", max_steps=10, lower=0.0) for _ in range(2))
    ours.fit([sample])
    location, scale = torch.linspace(-1, 1, 12).view(1, *GRID.shape), torch.tensor(2.0)
    theirs.normalise(location, scale)
    moved = sample._replace(ensemble=(sample.ensemble - location) / scale, target=(sample.target - location) / scale)
    theirs.fit([moved])
    back = theirs(moved).affine(location, scale)
    assert float(back.quantile(torch.tensor([0.0])).min()) == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(back.mean, ours(sample).mean, rtol=0, atol=0.02)


def test_mistakes_are_said_in_one_sentence():
    for options, message in (
        ({"family": "gauss"}, "family=gauss is unknown"),
        ({"family": "truncated_normal"}, "needs lower"),
        ({"lower": 0.0}, "has no lower"),
        ({"learning_rate": 2.0}, "learning_rate must be a number of at least 0.001 and less than 1"),
        ({"max_steps": 0}, "max_steps must be a whole number of at least 1"),
        ({"folds": 1}, "folds must be a whole number of at least 2"),
        ({"products": "yes"}, "products must be true or false"),
        ({"shared": 1}, "shared must be true or false"),
    ):
        with pytest.raises(InputError, match=message):
            BoostedEMOS(TASK, GRID, **options)
    with pytest.raises(InputError, match="boosting needs scale=log, got quadratic"):
        Boosting(Regression())
