"""The rim of a convolution, against a search over every output."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from layers import GRIDS

from models.layers.convolution import input_intervals
from models.layers.overlap import cell_count, rim
from models.parallel.domain import Domain
from models.parallel.halo import plan_halo


@settings(max_examples=150)
@given(
    title=st.sampled_from(sorted(GRIDS)),
    bands=st.integers(1, 8),
    sectors=st.integers(1, 11),
    kernel=st.integers(1, 7),
    stride=st.integers(1, 2),
    data=st.data(),
)
def test_the_rim_depends_on_cells_of_other_ranks(title, bands, sectors, kernel, stride, data):
    """No output outside the rim depends on cells of other ranks, and each strip has one that does."""
    assume(bands * sectors > 1)
    domain = Domain.split(GRIDS[title], bands, sectors, data.draw(st.integers(0, bands * sectors - 1)))
    out = domain.coarsen() if stride == 2 else domain
    plan = plan_halo(
        domain, (input_intervals(out.row_cuts, kernel, stride), input_intervals(out.column_cuts, kernel, stride))
    )
    foreign = np.zeros(plan.shape, bool)
    foreign.flat[plan.foreign_to] = True
    h, w = out.own_shape
    sees = np.array(
        [
            [foreign[i * stride : i * stride + kernel, j * stride : j * stride + kernel].any() for j in range(w)]
            for i in range(h)
        ]
    )
    times = np.zeros((h, w), int)
    for block in rim(plan, kernel, stride):
        assert sees[block].any()
        assert sees[block].size == cell_count(block), "beyond the end"
        times[block] += 1
    assert (times[sees] == 1).all()
    assert times.max() <= 1
