"""Boosting on arrays, against least squares and known predictors; boosted EMOS as a model."""

import pytest
import torch

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
FAMILIES = ("normal", "logistic", "censored_normal", "censored_logistic", "truncated_normal")


def cases(count=400, cells=3, useless=8, seed=0):
    """Return predictors (mean, log spread, one of μ, one of σ, `useless` ones), truth and its distribution."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(4 + useless, count, cells, generator=g, dtype=torch.float64)
    x[1] *= 0.3
    law = Normal(1 + 2 * x[0] + 0.7 * x[2], torch.exp(0.2 + x[1] + 0.4 * x[3]))
    return list(x), law.mu + law.sigma * torch.randn(count, cells, generator=g, dtype=torch.float64), law


def score(form, coefficients, predictors, truth, lower=None):
    return float(predict_boosted(form, coefficients[:, None], predictors, lower).crps(truth).mean())


def test_boosting_finds_the_relevant_predictors_and_nearly_the_distribution():
    x, y, _ = cases(cells=20)
    fresh, truth, law = cases(cells=20, seed=1)
    found = fit_boosted(Boosting(LOG), x, y)
    mu, log_sigma = found[:-2].unflatten(0, (2, -1))
    expected = torch.tensor([1, 2, 0, 0.7, 0])
    torch.testing.assert_close(mu[:5].mean(1), expected.double(), rtol=0, atol=0.05)
    torch.testing.assert_close(log_sigma[:5].mean(1), torch.tensor([0.2, 0, 1, 0, 0.4]).double(), rtol=0, atol=0.2)
    assert (mu[5:].abs() < 0.25).all()
    emos = EMOSCases(x[0], x[1].exp(), y).fit(LOG).coefficients
    plain = float(predict_emos(LOG, emos[:, None], fresh[0], fresh[1].exp()).crps(truth).mean())
    best = float(law.crps(truth).mean())
    assert best < score(LOG, found, fresh, truth) < best + 0.15 * (plain - best)


def test_many_small_steps_converge_to_the_regression_on_all_predictors():
    x, y, _ = cases(useless=2)
    boosting = Boosting(LOG, learning_rate=0.5, max_steps=300)
    terms = [torch.ones(1, 1).double(), *(v.T for v in x)]
    monster = LOG.fit(terms, terms, y.T, y.T * 0 + 1).coefficients
    block = CaseBlock.of([v.T for v in x], y.T, y.T * 0 + 1, torch.zeros(3, 400), None)
    torch.testing.assert_close(block.fit(boosting, (0, 1), 300).coefficients[:-2], monster, rtol=0, atol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("loss", ["crps", "likelihood"])
def test_every_step_lowers_the_score_of_every_family(family, loss):
    form, (x, y, _) = Regression(family, "log", loss), cases()
    lower = torch.full((3,), -1.0) if form.bounded else None
    y = y.clamp(min=-1) if form.bounded else y
    boosting, bound = Boosting(form, max_steps=30), None if lower is None else lower[:, None].expand(3, 400)
    block = CaseBlock.of([v.T for v in x], y.T, y.T * 0 + 1, torch.zeros(3, 400), bound)
    start, _ = block.fit_emos(form, (0, 1), block.weight)
    curve = torch.stack([value.mean(2)[:, 0] for _, value in block.iterate(boosting, start, block.weight, 30)])
    assert (curve.diff(dim=0) < 0).all()
    # `fit` returns the coefficients of the last step, in the units of the predictors.
    found = predict_boosted(form, block.fit(boosting, (0, 1), 30).coefficients[:, None], x, lower)
    torch.testing.assert_close(form.loss(found, y).mean(0), curve[-1])


def test_the_first_step_has_the_largest_expected_decrease():
    """Slopes of the score along every single predictor by finite differences."""
    x, y, _ = cases(count=60, cells=1)
    boosting, P = Boosting(LOG, learning_rate=0.4), len(x)
    block = CaseBlock.of([v.T for v in x], y.T, y.T * 0 + 1, torch.zeros(1, 60), None)
    before, after = (block.fit(boosting, (0, 1), steps).coefficients[:, 0] for steps in (0, 1))
    unit = torch.cat([torch.ones(1), torch.stack([v.std(unbiased=False) for v in x])]).double().repeat(2)

    def crps(theta):
        return score(LOG, theta[:, None], x, y)

    changed = (after - before).abs() > 1e-9
    changed[[0, 1 + P, -2, -1]] = False  # constants absorb the predictors' means; limits follow the spread
    (chosen,) = changed.nonzero()[:, 0].tolist()
    decrease = []
    for p in range(2 + 2 * P):
        mean = torch.zeros(4 + 2 * P, dtype=torch.float64)
        mean[p] = 1 / unit[p]
        if p % (1 + P):
            mean[p - p % (1 + P)] = -float(x[p % (1 + P) - 1].mean()) / unit[p]
        slope = (crps(before + 1e-5 * mean) - crps(before - 1e-5 * mean)) / 2e-5
        decrease.append(abs(slope))
    # The curvatures by μ and log σ differ, so only slopes of the same parameter are compared.
    half = range(1, 1 + P) if chosen <= P else range(2 + P, 2 + 2 * P)
    assert chosen == max(half, key=lambda p: decrease[p])
    assert crps(after) < crps(before)


def test_the_number_of_steps_has_the_lowest_total_score():
    curve = torch.tensor([[3.0, 2, 2, 9], [1, 1, 1, 0], [torch.nan, torch.nan, torch.nan, torch.nan]])

    def best(weight, curve=curve):
        return best_step(total_score(curve, torch.tensor(weight)))

    assert best([1.0, 1, 1]) == 1  # the first of two
    assert best([0.01, 1, 1]) == 3  # cells count by their weight
    curve[0, 1:] = torch.inf
    assert best([1.0, 1, 1]) == 0
    assert best([1.0, 1], torch.full((2, 5), torch.nan)) == 0


def test_held_out_scores_equal_those_of_fits_to_the_other_folds():
    """Each fold is a stretch of time, predicted by coefficients fitted to the others."""
    x, y, _ = cases(count=90, cells=2, useless=0)
    boosting, fold = Boosting(LOG, max_steps=4, folds=3), torch.arange(90) // 30
    block = CaseBlock.of([v.T for v in x], y.T, y.T * 0 + 1, fold.expand(2, 90), None)
    expected = torch.zeros(2, dtype=torch.float64)
    for k in range(3):
        # The same standardisation, because the steps depend on the units a little.
        weight = (fold != k).double().expand(2, 90)[:, None]
        *_, (theta, values) = block.iterate(boosting, block.fit_emos(boosting.regression, (0, 1), weight)[0], weight, 4)
        expected += values[:, 0, fold == k].sum(1) / 90
        assert theta.shape == (2, 1, 2, 5)
    torch.testing.assert_close(block.held_out_scores(boosting, (0, 1))[:, 4], expected)


def test_missing_cases_have_no_effect():
    x, y, _ = cases(count=90, useless=1)
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
    own, theirs = (each.fit(boosting, (0, 1), steps).coefficients for each in (block, whole))
    torch.testing.assert_close(own, theirs)


def test_cells_without_truth_are_nan_and_constants_have_no_coefficient(monkeypatch):
    x, y, _ = cases(count=60, useless=1)
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
    x, y, _ = cases(count=120, useless=2)
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


def test_a_predictor_far_beyond_its_range_in_training_at_most_doubles_the_spread():
    """Without limits, the last forecast's σ would be e⁵⁰ times as large."""
    generator = torch.Generator().manual_seed(0)
    mean, log_spread = torch.randn(300, 1, generator=generator), torch.randn(300, 1, generator=generator).clamp(-2, 2)
    truth = mean + log_spread.exp() * torch.randn(300, 1, generator=generator)
    coefficients = fit_boosted(Boosting(LOG, max_steps=20), [mean, log_spread], truth)
    inside = predict_boosted(LOG, coefficients[:, None], [mean, log_spread]).std
    beyond = predict_boosted(LOG, coefficients[:, None], [mean[:1], torch.tensor([[50.0]])]).std
    torch.testing.assert_close(beyond[0], 2 * inside.amax(0), rtol=1e-6, atol=0)


GRID = Grid.regular(3, 4)
TASK = Task("test", inputs=["msl", "2t", "tcc"], targets=["2t"], lead_times=[24, 48])


def batch(count=160, members=6, seed=0):
    """Return forecasts whose error depends on another variable and on the season."""
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


def test_other_inputs_improve_the_forecast_and_products_with_the_season_more():
    train, test = batch(seed=1), batch(seed=2)
    raw, plain, full = BoostedEMOS(TASK, GRID), BoostedEMOS(TASK, GRID), BoostedEMOS(TASK, GRID, products=True)
    plain.fit([train])
    full.fit(Sample(*(tensor[i : i + 7] for tensor in train)) for i in reversed(range(0, 160, 7)))
    assert crps(full, test) < 0.75 * crps(plain, test) < 0.7 * crps(raw, test)
    assert crps(full, test) < 0.22, "the true distribution scores 0.17"


def test_the_number_of_steps_is_that_of_all_tiles(monkeypatch):
    """A sum over tiles that grows with every step allows none."""
    plain, stopped = BoostedEMOS(TASK, GRID), BoostedEMOS(TASK, GRID)
    plain.fit([batch(seed=1)])
    growing = "models.statistical.boosted_emos.allsum"
    monkeypatch.setattr(growing, lambda curves, _: torch.arange(curves.shape[-1]).double().expand_as(curves))
    stopped.fit([batch(seed=1)])
    assert (stopped.coefficients != 0).sum() < (plain.coefficients != 0).sum()


def test_a_shared_model_uses_static_fields():
    train, test = (b._replace(target=b.target + 2 * b.static[:, :1]) for b in (batch(seed=3), batch(seed=4)))
    model = BoostedEMOS(TASK, GRID, products=True, shared=True)
    model.fit([train])
    assert model.coefficients.shape == (2, 4 + 2 * (6 + 2 + 3 + 15), 1, 1, 1)
    assert crps(model, test) < 0.3


def test_the_lower_bound_is_converted_to_normalised_units():
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
