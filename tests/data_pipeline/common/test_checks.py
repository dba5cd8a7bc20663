import math

import pytest

from data_pipeline.common.checks import between, one_of, positive, whole
from data_pipeline.common.errors import InputError


@pytest.mark.parametrize("value", [0, 11, 2.0, True, "3", None])
def test_only_whole_numbers_within_bounds(value):
    whole("depth", 1, 1, 10)
    with pytest.raises(InputError, match="depth must be a whole number from 1 to 10, got"):
        whole("depth", value, 1, 10)


@pytest.mark.parametrize("value", [0, -1e-9, math.nan, False, "1", None])
def test_only_positive_numbers(value):
    positive("rate", 1e-300)
    with pytest.raises(InputError, match="rate must be a number greater than 0, got"):
        positive("rate", value)


@pytest.mark.parametrize("value", [-0.1, 1, math.inf, math.nan, True, "0"])
def test_only_numbers_between(value):
    between("dropout", 0, 0, 1)
    with pytest.raises(InputError, match="dropout must be a number of at least 0 and less than 1, got"):
        between("dropout", value, 0, 1)


def test_only_words_that_are_known():
    one_of("way", "up", ("up", "down"))
    with pytest.raises(InputError, match="way must be one of up, down, got 'left'"):
        one_of("way", "left", ("up", "down"))
