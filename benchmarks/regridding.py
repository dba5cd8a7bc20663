"""Time to bring one field to another grid, on one core, without reading it.

From 0.25 to 0.5 degrees, our conservative weights are compared with a product of the field and two dense matrices of
overlaps, `dense_vs_ours`. From the octahedral grid O320 to 0.5 degrees there is no such product; `o320_bilinear_ms` and
`o320_conservative_ms` are milliseconds. All are timed in turn, and the shortest time of each counts.

    OMP_NUM_THREADS=1 python -m benchmarks.regridding [--json] [--rounds 20]
"""

from __future__ import annotations

from functools import partial

import eccodes
import numpy as np

from benchmarks.common import HALF_DEGREE, best_times, command_line, report
from data_pipeline.grid import Grid
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.regridding.weights import METHODS, weights_between

QUARTER_DEGREE = Grid.regular(721, 1440)
ROWS = 320
"""Rows of O320 between a pole and the equator."""


def octahedral(rows: int) -> ReducedGrid:
    """Return the octahedral grid with `rows` rows between a pole and the equator."""
    counts = [20 + 4 * min(k, 2 * rows - 1 - k) for k in range(2 * rows)]
    return ReducedGrid.gaussian(list(eccodes.codes_get_gaussian_latitudes(rows)), counts)


def main() -> None:
    """Time all ways; print the ratios."""
    options = command_line(__doc__, rounds=20).parse_args()
    random, rows = np.random.default_rng(0), np.arange(HALF_DEGREE.shape[0])
    field = random.random(QUARTER_DEGREE.shape, np.float32)
    across = random.random((HALF_DEGREE.shape[0], QUARTER_DEGREE.shape[0]), np.float32)
    along = random.random((QUARTER_DEGREE.shape[1], HALF_DEGREE.shape[1]), np.float32)
    source = octahedral(ROWS)
    points = random.random(source.shape[1], np.float32)
    works = {
        "dense": lambda: across @ field @ along,
        "ours": partial(weights_between(QUARTER_DEGREE, HALF_DEGREE, "conservative").apply, field.ravel(), rows),
    }
    for method in METHODS:
        works[method] = partial(weights_between(source, HALF_DEGREE, method).apply, points, rows)
    times = best_times(works, options.rounds)
    ratios = {"dense_vs_ours": times["dense"] / times["ours"]}
    ratios |= {f"o320_{method}_ms": 1000 * times[method] for method in METHODS}
    report("regridding", ratios, options.json)


if __name__ == "__main__":
    main()
