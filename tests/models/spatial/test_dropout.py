"""Dropout against its own promise: the share, the scale, and masks that do not depend on who draws them."""

import pytest
import torch
import torch.distributed as dist
from ranks import together

from data_pipeline.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from models.spatial.domain import Domain
from models.spatial.dropout import Dropout, drawn_for

GRID = Grid.regular(45, 16)


def batch(starts):
    nothing = torch.zeros(len(starts))
    return Sample(nothing, nothing, nothing, nothing, torch.tensor(starts), torch.full((len(starts),), 24))


def dropped(layer, starts, x):
    torch.manual_seed(5)
    with drawn_for(batch(starts)):
        return layer(x), layer(x)


@pytest.mark.parametrize("channels", [False, True])
def test_the_share_is_dropped_and_the_rest_scaled(channels):
    x = torch.ones(64, 50, *GRID.shape)
    kept, again = dropped(Dropout(GRID, 0.3, channels), list(range(64)), x)
    assert kept.unique().tolist() == [0, pytest.approx(1 / 0.7)]
    assert kept.mean() == pytest.approx(1, abs=0.03)
    assert (kept != again).any(), "two turns, two masks"
    per_channel = kept.flatten(2)
    assert ((per_channel == per_channel[..., :1]).all() == channels).item()


def test_a_forecast_keeps_its_mask_in_any_batch():
    layer, x = Dropout(GRID, 0.5), torch.ones(1, 3, *GRID.shape)
    (both, _), (alone, _) = dropped(layer, [7, 9], x.expand(2, -1, -1, -1)), dropped(layer, [9], x)
    torch.testing.assert_close(both[1:], alone)
    assert (both[0] != both[1]).any()


def test_nothing_is_dropped_in_evaluation():
    x = torch.randn(2, 3, *GRID.shape)
    assert Dropout(GRID, 0.5).eval()(x) is x
    with pytest.raises(InputError, match=r"model.dropout must be a number of at least 0 and less than 1, got 1"):
        Dropout(GRID, 1)


def own_part(rank, bands, sectors, channels):
    domain = Domain.split(GRID, bands, sectors, rank, dist.group.WORLD.group_name)
    x = torch.ones(2, 3, *GRID.shape)
    whole = dropped(Dropout(GRID, 0.5, channels), [3, 4], x)
    tile = dropped(Dropout(domain, 0.5, channels), [3, 4], domain.cut(x))
    return [torch.equal(domain.cut(a), b) for a, b in zip(whole, tile, strict=True)]


@pytest.mark.parametrize("channels", [False, True])
def test_tiles_are_cut_from_one_mask(channels):
    assert all(all(same) for same in together(4, own_part, 2, 2, channels))


def test_no_two_rows_have_the_same_mask():
    kept, _ = dropped(Dropout(GRID, 0.5), [3], torch.ones(1, 3, *GRID.shape))
    assert len({tuple(row.flatten().tolist()) for row in kept[0].unbind(1)}) == len(GRID.latitudes)
