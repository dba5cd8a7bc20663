"""Bounds between variables, against physical inequalities member by member."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from predictions import NormalPrediction
from scipy.stats import norm

from data_pipeline.grid import Grid
from data_pipeline.task import Task, Variable
from models.correction.corrected import Corrected
from models.correction.pipeline import CorrectionPipeline, CorrectionPipelines
from models.engines.forecast import RawForecast
from models.members.mutual_bounds import _LOWER, _PARTS, _UPPER, bound_by_raw, bound_mutually, mutual_bounds
from models.members.options import CorrectionOptions
from models.parallel.single_process import SingleProcess

T2, D2 = Variable.parse("2t"), Variable.parse("2d")


def fields(*names, seed=0):
    rng = np.random.default_rng(seed)
    return {Variable.parse(name): rng.normal(280, 2, (5, 4, 6)) for name in names}


def test_dependent_variables_get_the_value_of_the_other():
    made = fields("2t", "2d", "mx2t", "mn2t")
    before = {variable: field.copy() for variable, field in made.items()}
    bound_mutually(made)
    t2, d2, highest, lowest = made.values()
    np.testing.assert_array_equal(t2, before[T2])
    assert ((d2 <= t2) & (lowest <= t2) & (t2 <= highest)).all()
    kept = before[D2] <= t2
    np.testing.assert_array_equal(d2[kept], before[D2][kept])
    np.testing.assert_array_equal(d2[~kept], t2[~kept])


NAMES = sorted({name for pair in _LOWER | _PARTS | _UPPER for name in pair})
EVERY = [
    variable
    for name in NAMES
    for hours in ((6, 12, 24) if Variable(name).processing == "accumulation" else (0,))
    if (variable := Variable(name, 850 if name in "dt" else 0, hours))
]


def contradictions(fields):
    """Pairs of variables in which some member contradicts a bound."""
    return [
        (str(one), str(two))
        for one, two, upper, _ in mutual_bounds(fields)
        if ((fields[one] - fields[two]) * (1 if upper else -1) > 0).any()
    ]


@given(st.permutations(EVERY), st.integers(2, len(EVERY)), st.integers(0, 2**32 - 1))
def test_every_bound_holds_in_every_set_of_variables(variables, count, seed):
    """Some are corrected, others are raw; raw members do not contradict each other."""
    rng = np.random.default_rng(seed)
    raw, corrected = ({variable: rng.normal(size=(3, 2)) for variable in EVERY} for _ in range(2))
    bound_mutually(raw)
    assert not contradictions(raw)
    corrected = {variable: corrected[variable] for variable in variables[: count // 2]}
    others = {variable: raw[variable] for variable in variables[count // 2 : count]}
    bound_by_raw(corrected, others)
    bound_mutually(corrected)
    assert not contradictions(corrected)
    for one, two, upper, part in mutual_bounds([*corrected, *others]):
        if (one in corrected) != (two in corrected) and not (part and one in others):
            both = corrected | others
            assert ((both[one] <= both[two]) if upper else (both[one] >= both[two])).all(), (one, two)


def test_a_part_of_a_part_is_a_part_and_others_have_no_bound():
    parts = {(one, two) for one, two, _, part in mutual_bounds(EVERY) if part}
    assert {(one, three) for one, two in parts for other, three in parts if two == other} <= parts
    names = ("2t", "d@850", "t@500", "cp:24h", "tp:6h", "2t:24h-mean", "10u")
    assert mutual_bounds(map(Variable.parse, names)) == []


def test_neither_raw_parts_nor_missing_values_bound_anything():
    parts, total = fields("cp", seed=1), fields("tp")
    before = total[Variable("tp")].copy()
    bound_by_raw(total, parts)
    np.testing.assert_array_equal(total[Variable("tp")], before)
    made = fields("2t", "2d")
    made[T2][:, 0] = np.nan
    before = made[D2].copy()
    bound_mutually(made)
    np.testing.assert_array_equal(made[D2][:, 0], before[:, 0])
    assert np.isfinite(made[D2]).all()


def pipeline(targets, inputs, means, elsewhere=()):
    grid = Grid.regular(60, 60)
    task = Task("t", inputs, targets, [24])
    from models.parallel.domain import Domain

    shape = len(targets), *grid.shape
    # The quantiles of two members are 0.25 and 0.75 above these numbers.
    prediction = NormalPrediction(np.broadcast_to(np.array(means)[:, None, None] + 0.5, shape), 0.25 / norm.ppf(0.75))
    description = SimpleNamespace(task=task, grid=grid, sha256="")
    engine = SimpleNamespace(description=description, domain=Domain.of(grid), predict=lambda forecast: prediction)
    always, known = np.ones((len(inputs), *grid.shape)), np.ones(shape)
    engine.always, engine.known = always, known
    return CorrectionPipeline(
        engine, None, None, SingleProcess(), CorrectionOptions(), None, frozenset((v, 24) for v in elsewhere)
    )


def corrected(each, raw_inputs):
    task, shape = each.engine.description.task, each.engine.domain.own_shape
    ensemble = np.broadcast_to(np.array(raw_inputs, np.float32)[:, :, None, None], (*np.shape(raw_inputs), *shape))
    raw = ensemble[:, list(task.target_channels)].astype(float)
    mask = np.ones(ensemble.shape[1:], bool)
    members = each._correct_tile(RawForecast(ensemble, mask, raw, np.datetime64(0, "s"), 24, (0, 1))).members
    return members[:, :, 0, 0]


def test_the_raw_dew_point_bounds_a_temperature_unless_it_is_corrected_too():
    raw = [[281.0, 280.0], [283.0, 282.0]]  # of two members: 2t, 2d
    found = corrected(pipeline(["2t"], ["2t", "2d"], [280.0]), raw)
    np.testing.assert_allclose(found[:, 0], [280.25, 282.0])
    found = corrected(pipeline(["2t"], ["2t", "2d"], [280.0], elsewhere=[T2, D2]), raw)
    np.testing.assert_allclose(found[:, 0], [280.25, 280.75])
    found = corrected(pipeline(["2t", "2d"], ["2t", "2d"], [280.0, 280.1]), raw)
    np.testing.assert_allclose(found, [[280.25, 280.25], [280.75, 280.75]])


def test_two_correctors_of_one_run_bound_each_other():
    pipelines = CorrectionPipelines([pipeline(["2d"], ["2d"], [0.0]), pipeline(["2t"], ["2t"], [0.0])], SingleProcess())
    made = fields("2d", "2t")
    start = np.datetime64(0, "s")
    found = {
        number: Corrected(start, 24, field[:, None].copy(), (0, 1, 2, 3, 4))
        for number, field in enumerate(made.values())
    }
    pipelines._bound_mutually(found)
    np.testing.assert_array_equal(found[0].members[:, 0], np.minimum(made[D2], made[T2]))
    np.testing.assert_array_equal(found[1].members[:, 0], made[T2])
