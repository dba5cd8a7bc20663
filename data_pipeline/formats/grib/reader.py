"""MessageReader: messages in files as something to read fields from, by offset and in a few threads.

It holds paths and offsets and nothing that is open, so that it can be sent to other processes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import Window
from data_pipeline.formats.grib.decode import Cutout, Place, fill
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.packing import Packing
from data_pipeline.formats.grib.scan import changed
from data_pipeline.formats.grib.table import Stamp
from data_pipeline.grid import Grid

PLACE = np.dtype(
    [
        ("file", "i4"), ("layout", "i4"), ("offset", "i8"), ("length", "i8"), ("data", "i8"),
        ("bits", "i2"), ("reference", "f8"), ("binary", "i2"), ("decimal", "i2"),
    ]
)  # fmt: skip
"""A `Place` in a file, by the numbers of file and layout."""

THREADS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
"""Files, numpy and ecCodes release the interpreter's lock while they work."""
WORTH_A_THREAD = 1 << 16
"""Bytes of a message below which threads only wait for each other."""


@dataclass(frozen=True, eq=False)
class MessageReader:
    """Messages in several files, all on one grid; `stamps` say what the files must still be like."""

    paths: tuple[Path, ...]
    stamps: tuple[Stamp, ...]
    layouts: tuple[Layout, ...]
    places: np.ndarray

    @property
    def grid(self) -> Grid:
        """Where the values lie; north first, west to east."""
        return self.layouts[0].grid

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Decode the `window` of each message in `wanted` (...) into `out` (..., h, w); NaN where it is negative."""
        if out.shape[: wanted.ndim] != wanted.shape:
            raise ValueError(f"the array to fill is {out.shape}, the fields asked for are {wanted.shape}")
        out[wanted < 0] = np.nan
        cutout = Cutout.of(window, self.grid.shape)
        there = np.flatnonzero(wanted >= 0)
        if not cutout.height or not there.size:
            return
        order = there[np.argsort(wanted.ravel()[there], kind="stable")]  # as they stand in the files
        places = self.places[wanted.ravel()[order]]
        targets = [out[*index, ...] for index in zip(*np.unravel_index(order, wanted.shape), strict=True)]
        threads = min(THREADS, len(order))
        if threads < 2 or places["length"].mean() * cutout.height < WORTH_A_THREAD * self.grid.shape[0]:
            self._read_part(places, targets, cutout)
            return
        # Few parts, for threads hand each other the lock at every border; more where messages differ in what they cost.
        share = 8 if (places["bits"] < 0).any() else 2
        with ThreadPoolExecutor(threads) as pool:
            split = np.array_split(np.arange(len(order)), min(len(order), share * threads))
            parts = [(k[0], k[-1] + 1) for k in split]
            list(pool.map(lambda k: self._read_part(places[k[0] : k[1]], targets[k[0] : k[1]], cutout), parts))

    def _read_part(self, places: np.ndarray, targets: Sequence[np.ndarray], cutout: Cutout) -> None:
        for file, group in groupby(zip(places.tolist(), targets, strict=True), key=lambda pair: pair[0][0]):
            path = self.paths[file]
            try:
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    if Stamp.of(descriptor) != self.stamps[file]:
                        raise changed(path)
                    for (_, layout, offset, length, data, *packing), target in group:
                        place = Place(self.layouts[layout], offset, length, data, Packing(*packing))
                        fill(target, descriptor, path, place, cutout)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise InputError(f"cannot read {path} ({error.strerror})") from None
