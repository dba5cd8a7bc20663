"""Archive: past forecasts, the analyses that verify them, and fields that never change.

An archive is opened cheaply and reads lazily; `data_pipeline.dataset` turns it into samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import xarray as xr

from data_pipeline.errors import InputError
from data_pipeline.grib import expand, open_analysis, open_ensemble, open_static
from data_pipeline.grid import Grid
from data_pipeline.task import Variable


@dataclass(frozen=True)
class Archive:
    """Files of one data source; each field is a list of paths or globs.

    `static` may hold a land-sea mask (`lsm`) and orography (`z`); `oracle_ensemble` exists for twin experiments only:
    the best ensemble that can be made from what a forecaster knows. `missing` says what a hole in the ensemble is:
    an `error`, or values to `mask`.
    """

    ensemble: Sequence[str]
    analysis: Sequence[str]
    static_fields: Sequence[str] = ()
    oracle_ensemble: Sequence[str] = ()
    missing: Literal["error", "mask"] = "error"

    def __post_init__(self) -> None:
        if self.missing not in ("error", "mask"):
            raise InputError(f"data.archive.missing must be error or mask, got {self.missing!r}")

    def forecasts(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> xr.Dataset:
        """Open the ensemble: (init_time, lead_time, number, [level,] latitude, longitude), lazily indexed."""
        return open_ensemble(self.ensemble, variables, lead_times, missing=self.missing, chunks=None)

    def analyses(self, variables: Sequence[Variable]) -> xr.Dataset:
        """Open the truth: (time, [level,] latitude, longitude), lazily indexed."""
        return open_analysis(self.analysis, variables, chunks=None)

    @cached_property
    def static(self) -> xr.Dataset:
        """All static fields, (latitude, longitude); empty where the source has none."""
        return open_static(self.static_fields) if self.static_fields else xr.Dataset()

    @cached_property
    def oracle(self) -> Archive | None:
        """The archive whose ensemble is the oracle's, or None."""
        if not self.oracle_ensemble:
            return None
        return Archive(self.oracle_ensemble, self.analysis, self.static_fields, missing=self.missing)

    @cached_property
    def fingerprint(self) -> str:
        """Changes whenever a file of the archive is added, removed or rewritten."""
        digest = hashlib.sha256()
        for patterns in (self.ensemble, self.analysis, self.static_fields, self.oracle_ensemble):
            for path in expand(patterns) if patterns else ():
                status = path.stat()
                digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:16]


def grid_of(dataset: xr.Dataset) -> Grid:
    """Return the grid of an opened dataset."""
    return Grid(tuple(dataset.latitude.values), tuple(dataset.longitude.values))
