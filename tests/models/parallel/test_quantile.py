"""Quantiles over tiles against numpy's on the whole field."""

import numpy as np
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from ranks import run_on_ranks

from data_pipeline.grid import Grid
from models.parallel.domain import Domain
from models.parallel.exchange import count_sent_bytes
from models.parallel.quantile import quantile

GRID = Grid.regular(5, 8)
SIZES = st.floats(0, 2.0**100, width=32)


@given(arrays(np.float32, (2, 3, 5, 8), elements=st.one_of(SIZES, st.sampled_from([0.0, 1.0, 1e-42]))), st.floats(0, 1))
def test_quantiles_equal_those_of_numpy(values, share):
    found = quantile(torch.from_numpy(values), share, Domain.of(GRID)).numpy()
    expected = np.quantile(values.astype(float).reshape(2, -1), share, axis=1)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-42)


SHARES = (0.0, 0.3, 0.5, 0.77, 0.999)


def on_tiles(rank, bands, sectors):
    domain = Domain.split(Grid.regular(29, 50), bands, sectors, rank, dist.group.WORLD.group_name)
    x = torch.rand(3, 2, 29, 50, generator=torch.Generator().manual_seed(0)) ** 4
    with count_sent_bytes() as sent:
        found = [quantile(domain.cut(x), share, domain).tolist() for share in SHARES]
    return found, [quantile(x, share, Domain.of(domain.grid)).tolist() for share in SHARES], sent


def test_quantiles_on_tiles_equal_those_of_the_whole_globe():
    for found, expected, sent in run_on_ranks(2, on_tiles, 2, 1):
        assert found == expected
        # Three rounds of counts of 4 bytes; from the second round on, for two values of each sample.
        assert sent == {"sum": len(SHARES) * 4 * 3 * (2048 + 2 * 2048 + 2 * 1024)}
