"""Archive: files of past forecasts, of the analyses that verify them, and of static fields.

Opening an archive reads no values. `data_pipeline.dataset` turns an archive into samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar, Literal

import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import expand_paths
from data_pipeline.formats import grib, netcdf
from data_pipeline.formats import open as files
from data_pipeline.grid import Grid
from data_pipeline.protocols import Chunks, Fields
from data_pipeline.task import Channel, Variable

_PARTS = ("ensemble", "analysis", "static_fields", "oracle_ensemble")


@dataclass(frozen=True)
class Archive:
    """Files of one data source; each part is a list of paths or patterns of GRIB or NetCDF files.

    `static_fields` may contain a land-sea mask (`lsm`) and orography (`z`). `oracle_ensemble`, in twin experiments,
    is the best ensemble that the forecast's information allows. `missing`: whether missing ensemble fields are an
    `error` or values to `mask`. `variable_names` maps variables of NetCDF files with unusual names to GRIB names, for
    example {"T850": "t@850"}.
    """

    ensemble: Sequence[str]
    analysis: Sequence[str]
    static_fields: Sequence[str] = ()
    oracle_ensemble: Sequence[str] = ()
    missing: Literal["error", "mask"] = "error"
    variable_names: Mapping[str, str] | None = None

    moments: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.missing not in ("error", "mask"):
            raise InputError(f"data.archive.missing must be error or mask, got {self.missing!r}")
        if self.variable_names is not None and not isinstance(self.variable_names, Mapping):
            raise InputError(
                f"data.archive.variable_names must be {{VARIABLE: shortName, ...}}, got {self.variable_names!r}"
            )

    def check_available(self, years: Collection[int], moments: bool, further: Collection[Channel] = ()) -> None:
        """Do nothing: an archive can read everything in its files."""

    def forecasts(self, variables: Sequence[Variable], lead_times: Sequence[int], chunks: Chunks = None) -> xr.Dataset:
        """Open the ensemble as (init_time, lead_time, number, [level,] latitude, longitude)."""
        return files.open_ensemble(
            self.ensemble, variables, lead_times, names=self._names, missing=self.missing, chunks=chunks
        )

    def analyses(self, variables: Sequence[Variable], chunks: Chunks = None) -> xr.Dataset:
        """Open the analyses as (time, [level,] latitude, longitude)."""
        return files.open_analysis(self.analysis, variables, names=self._names, chunks=chunks)

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the ensemble to read samples from."""
        return files.ensemble_fields(self.ensemble, variables, lead_times, names=self._names, missing=self.missing)

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the analyses to read samples from."""
        return files.analysis_fields(self.analysis, variables, names=self._names)

    @cached_property
    def static(self) -> xr.Dataset:
        """All static fields, (latitude, longitude); empty if there are none."""
        if not self.static_fields:
            return xr.Dataset()
        return files.open_static(self.static_fields, names=self._names)

    @cached_property
    def oracle(self) -> Archive | None:
        """The same archive with the oracle ensemble as its ensemble, or None."""
        return replace(self, ensemble=self.oracle_ensemble, oracle_ensemble=()) if self.oracle_ensemble else None

    @cached_property
    def fingerprint(self) -> str:
        """A hash that changes when a file of the archive is added, removed or rewritten."""
        digest = hashlib.sha256()
        for part in _PARTS:
            for path in expand_paths(getattr(self, part)) if getattr(self, part) else ():
                status = path.stat()
                digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        if self.variable_names:
            digest.update(repr(sorted(self.variable_names.items())).encode())
        return digest.hexdigest()[:16]

    @property
    def exists(self) -> bool:
        """Whether every part has files; a machine that trains from a store may have none."""
        try:
            return bool(self.fingerprint)
        except InputError:
            return False

    @property
    def _names(self) -> Mapping[str, str] | None:
        """`variable_names`; an `InputError` if no part has NetCDF files."""
        return self.variable_names if self._formats else None

    @cached_property
    def _formats(self) -> dict[str, str]:
        """The format of each part, from the first bytes of its first file."""
        first = {part: expand_paths(getattr(self, part))[0] for part in _PARTS if getattr(self, part)}
        formats = {part: "netcdf" if netcdf.is_netcdf(path) else "grib" for part, path in first.items()}
        if self.variable_names and "netcdf" not in formats.values():
            raise InputError(
                f"data.archive.variable_names is for NetCDF files, but {first['ensemble']} and all others are GRIB; "
                "leave out data.archive.variable_names"
            )
        return formats

    def format_package(self, part: str) -> tuple[ModuleType, dict[str, Any]]:
        """Return the package of a part's format, and the options that only this format takes."""
        return (netcdf, {"names": self.variable_names}) if self._formats[part] == "netcdf" else (grib, {})


def grid_of(dataset: xr.Dataset) -> Grid:
    """Return the grid of an opened dataset."""
    return Grid(tuple(dataset.latitude.values), tuple(dataset.longitude.values))
