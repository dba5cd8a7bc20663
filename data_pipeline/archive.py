"""Archive: files of past forecasts, of the analyses that verify them, and of static fields.

Opening an archive reads no values. `data_pipeline.dataset` turns an archive into samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import AbsentVariableError, InputError
from data_pipeline.common.files import FileAddress, expand_addresses
from data_pipeline.common.identity import fingerprint_of
from data_pipeline.common.messages import say_once
from data_pipeline.dates import Dates
from data_pipeline.formats import open as files
from data_pipeline.formats.content_hash import content_hashes
from data_pipeline.formats.format import Format
from data_pipeline.formats.reader_versions import common_versions
from data_pipeline.formats.registry import format_of
from data_pipeline.formats.stated_intervals import StatedIntervals
from data_pipeline.formats.system_files import SystemFiles
from data_pipeline.formats.variables import checked_names
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points, has_ids
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.grids.station_cells import STATION_METHODS, StationMethod
from data_pipeline.ledger import Omission
from data_pipeline.protocols import Fields, MissingPolicy
from data_pipeline.regridding.area import check_area, cut
from data_pipeline.regridding.stations import stations_on
from data_pipeline.regridding.target import SAME_POINTS, TargetGrid, check_grid_option, regular_grid
from data_pipeline.regridding.weights import METHODS, Method
from data_pipeline.task import Task, Variable
from data_pipeline.truth_checks import CHECKS_VERSION, Findings, TruthChecks, checked, examine

if TYPE_CHECKING:
    import xarray as xr

_PARTS = ("ensemble", "analysis", "static_fields", "oracle_ensemble")


@dataclass(frozen=True)
class Archive:
    """Files of one data source; each part is a list of paths, patterns or URLs of GRIB, NetCDF or Zarr.

    `systems` maps the names of several forecast systems, whose members have the same numbers, to such lists. They take
    the place of `ensemble`; see `SystemFiles`.
    `static_fields` may contain a land-sea mask (`lsm`) and orography (`z`). `oracle_ensemble`, in twin experiments,
    is the best ensemble that the forecast's information allows. `missing` decides about a forecast that lacks a field
    of a member, or the analysis of one of several targets: it raises an `error`, has missing values (`mask`) or is left
    out (`drop`); see `samples.selection`. `variable_names` maps the files' names of variables to GRIB names, for
    example {"T850": "t@850"}; in GRIB files a name is a shortName or a paramId. `intervals` states the intervals of
    amounts, means and extremes if the files do not, {"tp": "1h"}, or by part, {"analysis": {"tp": "1h"}, "ensemble":
    {"tp": "since_start"}}; see `StatedIntervals`.

    `grid` names the grid on which all parts are read: `ensemble` or `analysis` for the grid of this part, or a number
    of degrees. The method `regridding` brings fields to this grid. With None, all parts must have the points of the
    ensemble's grid, or the analyses are observations at stations: then the ensemble and the static fields are read at
    these stations, and `station_cells` says which cells of the grid give their forecast, see
    `regridding.stations.stations_on`.

    With `area`, [north, west, south, east] in degrees, only the points in this box are read.

    `truth_checks` decides about implausible values of the analyses (`data_pipeline.truth_checks`): they are only
    reported (`report`), are missing (`mask`), or raise an `error` when they are read.
    """

    ensemble: Sequence[FileAddress | str]
    analysis: Sequence[str]
    static_fields: Sequence[str] = ()
    oracle_ensemble: Sequence[str] = ()
    missing: MissingPolicy = "error"
    variable_names: Mapping[str, str] | None = None
    intervals: Mapping[str, Any] | None = None
    grid: str | float | None = None
    regridding: Method = "conservative"
    station_cells: StationMethod | None = None
    area: Sequence[float] | None = None
    truth_checks: TruthChecks = "report"
    systems: Mapping[str, Sequence[str]] | None = None

    moments: ClassVar[None] = None
    omissions: ClassVar[tuple[Omission, ...]] = ()

    def __post_init__(self) -> None:
        if self.systems:
            object.__setattr__(self, "ensemble", SystemFiles.of(self.systems, "data.archive.systems"))
        check_choice("data.archive.missing", self.missing, get_args(MissingPolicy))
        check_choice("data.archive.truth_checks", self.truth_checks, get_args(TruthChecks))
        names = checked_names("data.archive.variable_names", self.variable_names)
        object.__setattr__(self, "variable_names", names)
        _ = self._ensemble_intervals, self._analysis_intervals
        check_grid_option(self.grid)
        check_choice("data.archive.regridding", self.regridding, METHODS)
        check_area(self.area)
        if self.station_cells is not None:
            check_choice("data.archive.station_cells", self.station_cells, STATION_METHODS)

    def __getstate__(self) -> dict[str, Any]:
        """Return the options only; another process reads the files itself, also for the fingerprint."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def check_available(self, task: Task, dates: Dates, moments: bool) -> None:
        """Raise `InputError` if the groups of the task are not the systems whose files are named."""
        if isinstance(self.ensemble, SystemFiles):
            self.ensemble.check(task)

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the ensemble to read samples from; missing fields are NaN."""
        return files.ensemble_fields(
            self.ensemble, variables, lead_times,
            names=self.variable_names, target=self._given_target, intervals=self._ensemble_intervals, missing="mask",
        )  # fmt: skip

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the analyses to read samples from; missing fields are NaN."""
        return checked(self._analyses(variables), self.truth_checks, self._findings)

    def _analyses(self, variables: Sequence[Variable]) -> Fields:
        """Open the analyses as they are in the files."""
        return files.analysis_fields(
            self.analysis, variables,
            names=self.variable_names, target=self._target, intervals=self._analysis_intervals, missing="mask",
        )  # fmt: skip

    @cached_property
    def static(self) -> xr.Dataset:
        """All static fields, (latitude, longitude); empty if there are none."""
        return self._static_on(self._target)

    def _static_on(self, target: TargetGrid | None) -> xr.Dataset:
        if not self.static_fields:
            import xarray as xr

            return xr.Dataset()
        return files.static_dataset(self.static_fields, self.variable_names, target)

    @cached_property
    def oracle(self) -> Archive | None:
        """The same archive with the oracle ensemble as its ensemble, or None."""
        if not self.oracle_ensemble:
            return None
        return replace(self, ensemble=self.oracle_ensemble, oracle_ensemble=(), systems=None)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the names and contents of all files, of the versions of their readers, and of the options.

        A copy of the archive in another folder has the same fingerprint.
        """
        paths = {part: expand_addresses(getattr(self, part)) if getattr(self, part) else [] for part in _PARTS}
        contents = {part: [[path.name for path in own], content_hashes(own)] for part, own in paths.items()}
        stated = [self._ensemble_intervals.described, self._analysis_intervals.described]
        grid = self.grid is not None and [self.grid, self.regridding]
        systems = [*self.ensemble.added.values()] if isinstance(self.ensemble, SystemFiles) else None
        parts = {"systems": systems, "cells": self.station_cells, "area": self.area and list(self.area)}
        cells = [[name, value] for name, value in parts.items() if value]
        masked = [CHECKS_VERSION] if self.truth_checks == "mask" else []
        return fingerprint_of(contents, common_versions(), self.variable_names or {}, stated, grid, *cells, *masked)

    def _findings(self, variable: Variable) -> Findings:
        """Return the implausible values of the analyses of a variable, compared with forecasts of all lead times."""
        if variable not in self._found:
            try:
                leads = files.lead_times_of(self.ensemble, variable, names=self.variable_names)
                forecasts = self.ensemble_fields([variable], leads)
            except AbsentVariableError:
                forecasts = None
            self._found[variable] = examine(self._analyses([variable]), variable, forecasts)
        return self._found[variable]

    @cached_property
    def _found(self) -> dict[Variable, Findings]:
        return {}

    @cached_property
    def _ensemble_intervals(self) -> StatedIntervals:
        """The option `intervals` for the ensemble and the oracle ensemble."""
        return StatedIntervals.parse(self.intervals, "ensemble")

    @cached_property
    def _analysis_intervals(self) -> StatedIntervals:
        """The option `intervals` for the analyses."""
        return StatedIntervals.parse(self.intervals, "analysis")

    @cached_property
    def _given_target(self) -> TargetGrid | None:
        """The points of `area` on the grid that the options name; None for the whole grid of the ensemble."""
        if self.area is None:
            return self._whole_target
        whole = self._whole_target or self._own_target
        return whole and replace(whole, grid=cut(whole.grid, self.area))

    @cached_property
    def _whole_target(self) -> TargetGrid | None:
        """The grid that the option `grid` names, or the stations of the observations, or None."""
        if self.grid is None:
            return self._stations
        if isinstance(self.grid, str):
            return TargetGrid(files.grid_of_files(getattr(self, self.grid), self.variable_names), self.regridding)
        parts = [part for part in (self.ensemble, self.analysis, self.static_fields) if part]
        grids = [files.grid_of_files(part, self.variable_names) for part in parts]
        return TargetGrid(regular_grid(self.grid, grids), self.regridding)

    @cached_property
    def _stations(self) -> TargetGrid | None:
        """The stations of the observations, if the ensemble has a grid; else None."""
        grid = self._grid_of("ensemble")
        stations = None if grid is None or has_ids(grid) else self._grid_of("analysis")
        if grid is None or not isinstance(stations, Points) or not stations.ids:
            if self.station_cells:
                raise InputError(
                    "data.archive.station_cells is for an ensemble on a grid and observations at stations with ids; "
                    "leave it out"
                )
            return None
        points, sentence = stations_on(
            stations, grid, self.station_cells, lambda cells: self._static_on(TargetGrid(cells))
        )
        say_once(f"{', '.join(map(str, self.ensemble))}: {sentence}")
        return TargetGrid(points)

    def _grid_of(self, part: str) -> Grid | None:
        """Return the grid of a part; None if it has no files, or they cannot be read.

        Opening such a part raises a better error, and a store needs no files.
        """
        try:
            paths = getattr(self, part)
            return files.grid_of_files(paths, self.variable_names) if paths else None
        except InputError:
            return None

    @cached_property
    def _target(self) -> TargetGrid | None:
        """The grid of analyses and static fields: the grid that the option names, else the ensemble's points."""
        return self._given_target or (None if self.grid is not None else self._own_target)

    @property
    def _own_target(self) -> TargetGrid | None:
        """The ensemble's grid; None if it is not regular."""
        grid = self._grid_of("ensemble")
        return None if grid is None or isinstance(grid, ReducedGrid) else TargetGrid(grid)

    @property
    def exists(self) -> bool:
        """Whether every part has files; a machine that trains from a store may have none."""
        try:
            return all(expand_addresses(getattr(self, part)) for part in _PARTS if getattr(self, part))
        except InputError:
            return False

    def format_of(self, part: str) -> Format:
        """Return the format of a part, from its first file."""
        return format_of(expand_addresses(getattr(self, part))[0])


def regridding_of(source: object) -> str | None:
    """Return how fields come to the grid: by a method if `grid` is set, from its points if `area` is, else None.

    It is None for other sources than an archive.
    """
    if not isinstance(source, Archive) or (source.grid is None and source.area is None):
        return None
    return source.regridding if source.grid is not None else SAME_POINTS
