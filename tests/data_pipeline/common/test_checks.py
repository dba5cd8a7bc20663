import math

import pytest

from data_pipeline.common.checks import check_between, check_integer, check_positive
from data_pipeline.common.errors import InputError

CHECKS = [
    (check_integer, (1, 10), 1, (0, 11, 2.0, True, "3", None), "a whole number from 1 to 10"),
    (check_positive, (), 1e-300, (0, -1e-9, math.nan, False, "1", None), "a number greater than 0"),
    (check_between, (0, 1), 0, (-0.1, 1, math.inf, math.nan, True, "0"), "a number of at least 0 and less than 1"),
]
"""Function, bounds, a good value, other values, and what the message says."""


@pytest.mark.parametrize(("check", "bounds", "good", "others", "words"), CHECKS)
def test_numbers_outside_their_bounds_are_refused(check, bounds, good, others, words):
    check("depth", good, *bounds)
    for value in others:
        with pytest.raises(InputError, match=f"depth must be {words}, got"):
            check("depth", value, *bounds)
