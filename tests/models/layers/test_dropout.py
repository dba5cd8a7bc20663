"""Dropout: share, scale, independence, and masks that do not depend on tiles or device."""

from contextlib import nullcontext

import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from models.layers.dropout import Dropout, masks_for, mix_bits, same_masks
from models.parallel.domain import Domain

GRID = Grid.regular(45, 16)


def batch(starts):
    nothing = torch.zeros(len(starts))
    return Sample(nothing, nothing, nothing, nothing, torch.tensor(starts), torch.full((len(starts),), 24))


def drop_twice(layer, starts, x):
    torch.manual_seed(5)
    with masks_for(batch(starts)):
        return layer(x), layer(x)


@pytest.mark.parametrize("channels", [False, True])
def test_a_share_is_dropped_and_the_rest_scaled(channels):
    x = torch.ones(64, 50, *GRID.shape)
    kept, again = drop_twice(Dropout(GRID, 0.3, channels), list(range(64)), x)
    assert kept.unique().tolist() == [0, pytest.approx(1 / 0.7, rel=2e-5)]
    assert kept.mean() == pytest.approx(1, abs=4 * (0.3 / 0.7 / (64 * 50)) ** 0.5)
    assert (kept != again).any(), "two calls draw two masks"
    per_channel = kept.flatten(2)
    assert ((per_channel == per_channel[..., :1]).all() == channels).item()


def test_masks_of_a_forecast_do_not_depend_on_the_batch():
    layer, x = Dropout(GRID, 0.5), torch.ones(1, 3, *GRID.shape)
    (both, _), (alone, _) = drop_twice(layer, [7, 9], x.expand(2, -1, -1, -1)), drop_twice(layer, [9], x)
    torch.testing.assert_close(both[1:], alone)
    assert (both[0] != both[1]).any()


def test_nothing_is_dropped_in_evaluation():
    x = torch.randn(2, 3, *GRID.shape)
    assert Dropout(GRID, 0.5).eval()(x) is x
    with pytest.raises(InputError, match=r"model.dropout must be a number of at least 0 and less than 1, got 1"):
        Dropout(GRID, 1)


@pytest.mark.parametrize("channels", [False, True])
def test_tiles_are_parts_of_one_mask(channels):
    x = torch.ones(2, 3, *GRID.shape)
    whole = drop_twice(Dropout(GRID, 0.5, channels), [3, 4], x)
    for rank in range(15):
        domain = Domain.split(GRID, 3, 5, rank)
        tile = drop_twice(Dropout(domain, 0.5, channels), [3, 4], domain.cut(x))
        assert all(torch.equal(domain.cut(a), b) for a, b in zip(whole, tile, strict=True))


def test_same_masks_repeats_masks_from_the_time_of_the_call():
    layer, x = Dropout(GRID, 0.5), torch.ones(1, 3, *GRID.shape)
    with masks_for(batch([3])):
        layer(x)
        again = same_masks()
        expected = [layer(x), layer(x)]
        with again:
            found = [layer(x), layer(x)]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert not torch.equal(layer(x), expected[0])


@pytest.mark.parametrize("known", [True, False], ids=["of a batch", "without a batch"])
def test_masks_follow_the_seed(known):
    layer, x, masks = Dropout(GRID, 0.5), torch.ones(2, 3, *GRID.shape), []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        with masks_for(batch([3, 4])) if known else nullcontext():
            masks.append(layer(x))
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0][0], masks[0][1])


def as_signed(number, bits):
    """The signed integer of the last `bits` of an integer."""
    return (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def splitmix(state):
    """The published finaliser in Python integers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def number_by_hand(key, channel, row, column):
    """One number of a mask, in Python integers."""
    own = splitmix((key + splitmix(channel * 45 + row)) % 2**64)
    word = as_signed(own + splitmix(column // 2), 32)
    for factor, shift in ((0x21F0AAAD, 15), (0x735A2D97, 16)):
        word = as_signed(word * factor, 32)
        word = as_signed(word + (word >> shift), 32)
        word = as_signed(word * (own >> 32 | 1), 32)
        word = as_signed(word + (word >> 16), 32)
    return as_signed(word >> 16 if column % 2 else word, 16)


def test_hashes_equal_those_of_python_integers():
    """Integer hashes are equal on every device, so a run that resumes on another device has the same masks."""
    keys = [5, -(2**61) + 7]
    found = Dropout(GRID, 0.5)._values(torch.tensor(keys), 3)
    for b, channel, row, column in [(0, 0, 0, 0), (0, 0, 0, 1), (0, 2, 44, 15), (1, 1, 17, 6), (1, 2, 3, 9)]:
        assert int(found[b, channel, row, column]) >> 16 == number_by_hand(keys[b] % 2**64, channel, row, column)
    assert [int(x) % 2**64 for x in mix_bits(torch.tensor(keys))] == [splitmix(key % 2**64) for key in keys]


def test_whole_channels_are_dropped_independently():
    layer, x, kept = Dropout(GRID, 0.25, channels=True), torch.ones(512, 64, 1, 1), []
    torch.manual_seed(5)
    with masks_for(batch([21_600 * k for k in range(512)])):
        for _ in range(4):
            kept.append(layer(x)[..., 0, 0] > 0)
    kept = torch.stack(kept).double()
    assert float(kept.mean()) == pytest.approx(0.75, abs=4 * (0.1875 / kept.numel()) ** 0.5)
    for axis in range(3):
        one, other = (kept.narrow(axis, first, kept.shape[axis] - 1) - 0.75 for first in (0, 1))
        assert abs(float((one * other).mean())) < 4 * 0.1875 / one.numel() ** 0.5
