import math

import pytest

from data_pipeline.common.checks import check_between, check_integer, check_positive
from data_pipeline.common.errors import InputError


@pytest.mark.parametrize("value", [0, 11, 2.0, True, "3", None])
def test_integer_within_bounds(value):
    check_integer("depth", 1, 1, 10)
    with pytest.raises(InputError, match="depth must be a whole number from 1 to 10, got"):
        check_integer("depth", value, 1, 10)


@pytest.mark.parametrize("value", [0, -1e-9, math.nan, False, "1", None])
def test_positive_number(value):
    check_positive("rate", 1e-300)
    with pytest.raises(InputError, match="rate must be a number greater than 0, got"):
        check_positive("rate", value)


@pytest.mark.parametrize("value", [-0.1, 1, math.inf, math.nan, True, "0"])
def test_number_between_bounds(value):
    check_between("dropout", 0, 0, 1)
    with pytest.raises(InputError, match="dropout must be a number of at least 0 and less than 1, got"):
        check_between("dropout", value, 0, 1)
