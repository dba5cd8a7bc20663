"""Check that a GRIB message can hold the grid its header describes, before anything of that size is computed.

One wrong octet can turn a small grid into one with billions of points.
"""

from __future__ import annotations

import eccodes

from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.keys import get_text, get_whole

MAX_POINTS = 1 << 28
"""Most points of a grid; a global grid with 0.02° between points has 162 million."""
MAX_LINE = 1 << 17
"""Most rows, and most columns, of a regular grid; twice as many as GRIB1 can state."""
MAX_GAUSSIAN = 1 << 14
"""Largest number of latitudes between a pole and the equator of a Gaussian grid, and largest Nside of HEALPix."""
MAX_DEGREES = 720.0
"""Largest longitude of a grid's edge in an undamaged message; GRIB2 can state up to 4294°."""


def size_problem(handle: int, layout: Layout) -> str:
    """Return why an ecCodes message cannot hold the grid of its `layout`; an empty text if it can.

    Without a bitmap, simple packing stores every point in the same number of bits, which is 0 for a constant field. A
    bitmap takes one bit for each point.
    """
    if not layout.readable:
        return ""
    points = layout.rows * layout.columns
    described = f"describes a {layout.grid_type} grid of {layout.rows} x {layout.columns} points"
    if min(layout.rows, layout.columns) < 1 or points > MAX_POINTS or layout.gaussian > MAX_GAUSSIAN:
        return described
    if layout.regular and max(layout.rows, layout.columns) > MAX_LINE:
        return described
    if layout.grid_type == "healpix" and points != 12 * layout.gaussian**2:
        return f"{described} with Nside {layout.gaussian}"
    if max(abs(edge) for edge in (layout.north, layout.south)) > 90.01:
        return f"describes a grid between latitudes {layout.north:g} and {layout.south:g}"
    if max(abs(edge) for edge in (layout.west, layout.east)) > MAX_DEGREES:
        return f"describes a grid between longitudes {layout.west:g} and {layout.east:g}"
    if get_whole(handle, "edition", 2) == 2 and (count := get_whole(handle, "numberOfDataPoints", points)) != points:
        return f"{described}, but states {count} points"
    if layout.gaussian and layout.regular and (found := layout.latitude_count) != layout.rows:
        return f"{described}, but {found} Gaussian latitudes lie between its edges"
    bits = get_whole(handle, "bitsPerValue", 0)
    if get_whole(handle, "bitmapPresent", 0):
        bits = 1
    elif get_text(handle, "packingType") != "grid_simple":
        bits = 0
    length = eccodes.codes_get_message_size(handle)
    return f"{described}, which do not fit into its {length} bytes" if bits * points > 8 * length else ""
