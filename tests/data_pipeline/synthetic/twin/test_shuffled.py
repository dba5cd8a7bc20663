"""The twin with wrong dependence: the values of each cell, and correlations between cells, lead times and variables."""

import numpy as np

from data_pipeline.synthetic.twin.twin_datasets import twin

VARIABLES = "2t", "skt"


def fields(**options):
    forecasts, analyses = twin(
        VARIABLES, (24, 48), years=(2015, 2016), dates=2, members=8, rows=9, columns=64, **options
    )
    return np.stack([forecasts[name].values for name in forecasts if "number" in forecasts[name].dims]), analyses


def correlation(one, other):
    """Return the correlation of the departures of members from their mean."""
    one, other = ((values - values.mean(-3, keepdims=True)).ravel() for values in (one, other))
    return np.corrcoef(one, other)[0, 1]


def test_members_change_places_independently_in_each_cell_lead_time_and_variable():
    (usual, truth), (shuffled, same) = fields(), fields(shuffled=True)
    assert truth.equals(same)
    scale = usual.std((1, 2, 3, 4, 5), keepdims=True)
    np.testing.assert_allclose(np.sort(shuffled, 3) / scale, np.sort(usual, 3) / scale, atol=1e-3)  # packed anew
    number = shuffled[0].size
    for left, right in (
        (lambda one: one[0][..., 1:], lambda one: one[0][..., :-1]),  # neighbouring cells
        (lambda one: one[0][:, 0], lambda one: one[0][:, 1]),  # lead times
        (lambda one: one[0], lambda one: one[1]),  # variables
    ):
        assert abs(correlation(left(usual), right(usual))) > 0.15
        assert abs(correlation(left(shuffled), right(shuffled))) < 5 / number**0.5 + 0.02
