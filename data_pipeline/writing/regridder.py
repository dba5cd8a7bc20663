"""MessageRegridder: bring GRIB messages from other grids to a regular grid."""

from __future__ import annotations

import threading
from contextlib import suppress

import eccodes
import numpy as np

from data_pipeline.formats.grib.decode import decode
from data_pipeline.formats.grib.headers import GRIB1_BITMAP, GRIB1_GRID
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.keys import opened
from data_pipeline.regridding.grid_coverage import shared_points
from data_pipeline.regridding.target import TargetGrid
from data_pipeline.regridding.weights import weights_between
from data_pipeline.writing.encode import grid_template
from data_pipeline.writing.marks import section_starts

NO_CATALOGUED_GRID = 255
"""Octet 7 of GRIB1's section 1: the grid is described in section 2."""
EARTH = slice(14, 30)
"""Shape and size of the earth in section 3 of GRIB2, in all its templates."""


class MessageRegridder:
    """Gives messages the grid of `target`; `counts` holds the number of messages by their former grid.

    Only the sections of grid, packing and values are new. The class is thread-safe.
    """

    def __init__(self, target: TargetGrid) -> None:
        self.target = target
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def needs(self, layout: Layout) -> bool:
        """Whether messages of a layout are on another grid than the target's."""
        return not self.target.grid.matches(layout.grid)

    def sentences(self) -> list[str]:
        """Return a sentence for each grid whose messages got another grid."""
        method = self.target.method
        how = f"brought to it by {method} weights" if method else "of which they have the values"
        return [
            f"{count} corrected messages were on {source}; they are now on the corrector's grid of {self.target.grid}, "
            f"{how}; all other messages keep their grid"
            for source, count in self.counts.items()
        ]

    def regrid(self, message: bytes, layout: Layout) -> tuple[bytes, Layout, np.ndarray]:
        """Return a message on the target's grid, its layout, and where its values are missing (H, W).

        The caller must set the values of the message.
        """
        grid, method = self.target.grid, self.target.method
        values = decode(message, layout)
        if method is None:
            if (points := shared_points(grid, layout.grid)) is None:
                raise ValueError(f"{layout.grid} lacks points of {grid}")
            missing = np.isnan(values[np.ix_(*points)])
        else:
            rows = np.arange(grid.shape[0])
            missing = np.isnan(weights_between(layout.grid, grid, method).apply(values.ravel(), rows))
        join = _with_grid1 if message[7] == 1 else _with_grid2
        with opened(join(message, grid_template(grid, message[7]))) as handle:
            # If ecCodes cannot set the old packing on the new grid, the message keeps simple packing.
            with suppress(eccodes.CodesInternalError), opened(message) as old:
                eccodes.codes_set(handle, "packingType", eccodes.codes_get_string(old, "packingType"))
            eccodes.codes_set(handle, "bitmapPresent", int(missing.any()))
            # Setting values also sets their number in the grid section; equal values would change the packing.
            eccodes.codes_set_double_array(handle, "values", np.arange(float(missing.size)))
            new, new_layout = eccodes.codes_get_message(handle), Layout.of(handle)
        if not grid.matches(new_layout.grid):
            raise RuntimeError(f"a message on {grid} was written on {new_layout.grid}")
        with self._lock:
            self.counts[str(layout.grid)] = self.counts.get(str(layout.grid), 0) + 1
        return new, new_layout, missing


def _with_grid1(message: bytes, template: bytes) -> bytes:
    """Return a GRIB1 message with section 1 of `message` and the other sections of `template`."""
    product = bytearray(message[8 : 8 + int.from_bytes(message[8:11], "big")])
    product[6] = NO_CATALOGUED_GRID
    product[7] = GRIB1_GRID | (template[15] & GRIB1_BITMAP)
    rest = template[8 + int.from_bytes(template[8:11], "big") :]
    length = 8 + len(product) + len(rest)
    return b"GRIB" + length.to_bytes(3, "big") + b"\1" + bytes(product) + rest


def _with_grid2(message: bytes, template: bytes) -> bytes:
    """Return a GRIB2 message with sections 1, 2 and 4 of `message` and the other sections of `template`."""
    old, new = _sections2(message), _sections2(template)
    grid = bytearray(new[3])
    grid[EARTH] = old[3][EARTH]
    sections = {**new, **{number: section for number, section in old.items() if number in (1, 2, 4)}, 3: bytes(grid)}
    body = b"".join(sections[number] for number in sorted(sections)) + b"7777"
    return message[:8] + (16 + len(body)).to_bytes(8, "big") + body


def _sections2(message: bytes) -> dict[int, bytes]:
    """Return the sections of a GRIB2 message with one field, by number."""
    return {
        number: message[at : at + int.from_bytes(message[at : at + 4], "big")]
        for number, at in section_starts(message).items()
    }
