"""ArraySource: forecasts and analyses in datasets of xarray, as the data source of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, get_args

import numpy as np
import xarray as xr

from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.common.identity import fingerprint_of, hash_of
from data_pipeline.common.messages import say
from data_pipeline.dates import Dates
from data_pipeline.formats.reader_versions import common_versions
from data_pipeline.formats.regridded import RegriddedReader
from data_pipeline.grids.points import Points, has_ids
from data_pipeline.grids.station_cells import StationMethod
from data_pipeline.ledger import Omission
from data_pipeline.protocols import Fields, MissingPolicy
from data_pipeline.regridding.stations import stations_on
from data_pipeline.sources.array_fields import StandardDataset, static_names
from data_pipeline.task import Task, Variable
from data_pipeline.truth_checks import CHECKS_VERSION, Findings, TruthChecks, checked, examine


class ArraySource:
    """Datasets of xarray, in memory or of dask; implements `protocols.DataSource`.

    `names` maps names of variables in the datasets to GRIB names, such as {"t2m": "2t"}. `static` has static fields;
    by default they are the variables of the ensemble without times. `missing`: what happens to a forecast with a field
    that has no value in any cell; `truth_checks`: what happens to implausible values of the truth; `station_cells`:
    which cells of an ensemble on a grid give the forecasts of the stations of the truth; all as in
    `data_pipeline.archive.Archive`.
    """

    moments: ClassVar[None] = None
    omissions: ClassVar[tuple[Omission, ...]] = ()

    def __init__(
        self,
        ensemble: xr.Dataset,
        truth: xr.Dataset,
        static: xr.Dataset | None = None,
        names: Mapping[str, str] | None = None,
        missing: MissingPolicy = "error",
        truth_checks: TruthChecks = "report",
        station_cells: StationMethod | None = None,
    ) -> None:
        check_choice("missing", missing, get_args(MissingPolicy))
        check_choice("truth_checks", truth_checks, get_args(TruthChecks))
        self.missing, self._truth_checks = missing, truth_checks
        names = names or {}
        own = [{name: names[name] for name in names if name in each} for each in (ensemble, truth)]
        if unknown := [name for name in names if name not in own[0] and name not in own[1]]:
            raise InputError(f"names has {unknown[0]!r}, which is no variable of the datasets; correct it")
        self._ensemble = StandardDataset.forecasts(ensemble, "the ensemble", own[0])
        self._truth = StandardDataset.analyses(truth, "the truth", own[1])
        self._static = static
        self._stations: Points | None = None
        stations, grid = self._truth.grid, self._ensemble.grid
        if isinstance(stations, Points) and stations.ids and not has_ids(grid):
            points, sentence = stations_on(stations, grid, station_cells, self._static_on)
            say(sentence)
            self._stations = points
        elif station_cells:
            raise InputError("station_cells is for an ensemble on a grid and a truth at stations; leave it out")
        self._found: dict[Variable, Findings] = {}

    def check_available(self, task: Task, dates: Dates, moments: bool) -> None:
        """Do nothing: opening the fields raises the errors."""

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the ensemble to read samples from."""
        found = self._ensemble.forecast_fields(variables, lead_times)
        return found if self._stations is None else replace(found, reader=RegriddedReader(found.reader, self._stations))

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the analyses to read samples from."""
        return checked(self._truth.analysis_fields(variables), self._truth_checks, self._findings, count_empty=True)

    def _findings(self, variable: Variable) -> Findings:
        """Return the implausible values of the truth of a variable, compared with the forecasts of all lead times."""
        if variable not in self._found:
            try:
                forecasts = self.ensemble_fields([variable], self._ensemble.dataset.lead_time.values.tolist())
            except InputError:  # an analysis that only is an input
                forecasts = None
            self._found[variable] = examine(self._truth.analysis_fields([variable]), variable, forecasts)
        return self._found[variable]

    @cached_property
    def static(self) -> xr.Dataset:
        """The static fields, (latitude, longitude)."""
        return self._static_on(self._stations)

    def _static_on(self, stations: Points | None) -> xr.Dataset:
        given = self._ensemble.dataset if self._static is None else self._static
        if not static_names(given):
            return xr.Dataset()
        found = StandardDataset.static(given, "the static fields")
        if stations and not has_ids(found.grid):
            found = found.at_stations(stations)
        return found.dataset.transpose("latitude", "longitude", "point", missing_dims="ignore")

    @cached_property
    def fingerprint(self) -> str:
        """A hash of names, coordinates, attributes and values of ensemble, truth and static fields.

        Arrays of dask are not computed for it: the names of their chunks, which depend on the files, stand for values.
        """
        sources = [[one.labels, _described(one.dataset)] for one in (self._ensemble, self._truth)]
        masked = [CHECKS_VERSION] if self._truth_checks == "mask" else []
        cells = [repr(self._stations.cells)] if self._stations else []
        return fingerprint_of(sources, _described(self.static), common_versions(), *masked, *cells)


def _described(dataset: xr.Dataset) -> dict[str, Any]:
    found = {}
    for name, one in dataset.variables.items():
        attributes = {str(key): value for key, value in one.attrs.items()}
        found[str(name)] = [one.dims, one.shape, str(one.dtype), attributes, _contents(one)]
    return found


def _contents(variable: xr.Variable) -> list[str]:
    """Return hashes of the values: of each row along the first of many dimensions, so that no array is copied whole."""
    if variable.chunks:
        return [str(getattr(variable.data, "name", ""))]
    rows = variable if variable.ndim > 2 else [variable]
    arrays = (np.ascontiguousarray(row.values) for row in rows)
    return [hash_of(values.tolist() if values.dtype.hasobject else values.tobytes()) for values in arrays]
