"""Write the GRIB files of the twin experiment, with the keys of the real archives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import date, timedelta
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_pipeline.common.files import atomic_write
from data_pipeline.grid import Grid
from data_pipeline.synthetic.twin.atmosphere import TRUNCATION
from data_pipeline.synthetic.twin.diagnostics import ACCUMULATED_NAMES
from data_pipeline.synthetic.twin.earth import Earth
from data_pipeline.synthetic.twin.model_parameters import GRAVITY
from data_pipeline.synthetic.twin.noise import NoisePurpose, normal_noise
from data_pipeline.synthetic.twin.simulation import GaussianFields, Snapshot, simulate
from data_pipeline.synthetic.twin.sphere import Interpolation, Sphere
from data_pipeline.synthetic.twin.start_pairs import (
    BITS_PER_VALUE,
    REFERENCE_YEAR,
    STATIC_FIELDS_FILE,
    VARIABLES,
    StartPair,
    file_name,
)
from data_pipeline.task import Variable
from data_pipeline.writing import Encoder

FORECAST_KEYS: dict[str, int | str] = {
    "centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 26, "class": "od", "type": "pf",
    "stream": "enfh", "expver": "0001", "stepUnits": "h", "bitsPerValue": BITS_PER_VALUE,
}  # fmt: skip
"""Keys of reforecasts: local definition 26 has a key for the date of the model version beside the date of the start."""
ANALYSIS_KEYS: dict[str, int | str] = {
    "centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 1, "class": "ea", "type": "an",
    "stream": "oper", "expver": "0001", "bitsPerValue": BITS_PER_VALUE,
}  # fmt: skip


class TwinWriter:
    """Writes the files of the experiment into `folder`. A file appears when it is complete."""

    def __init__(self, folder: Path, grid: Grid) -> None:
        self.folder = folder
        sphere = Sphere(TRUNCATION)
        earth = Earth(sphere)
        self._to_grid, self._to_grid_linear = Interpolation(sphere, grid), Interpolation(sphere, grid, points=2)
        self._land = self._to_grid(rows_first(earth.land))[0].clamp(0, 1)
        self._height = self._to_grid(rows_first(earth.height))[0].clamp(min=0)
        self._forecasts = Encoder(grid, edition=1, **FORECAST_KEYS)
        self._analyses = Encoder(grid, edition=1, **ANALYSIS_KEYS)

    def write_static(self) -> None:
        """Write the land-sea mask, 0 to 1, and the geopotential of the surface, m² s⁻²."""
        with atomic_write(self.folder / STATIC_FIELDS_FILE) as file:
            for name, values in (("lsm", self._land), ("z", GRAVITY * self._height)):
                keys = {"dataDate": REFERENCE_YEAR * 10000 + 101, "dataTime": 0}
                file.write(self._analyses.encode(values.numpy(), **_variable_keys(Variable(name)), **keys))

    def write_pair(self, pair: StartPair) -> None:
        """Integrate a pair of start dates and write its files, except for a start whose files all exist.

        All files of a start date appear together, so an interruption loses the work on one start only.
        """
        written = [start for start in pair.starts if all((self.folder / n).exists() for n in pair.file_names(start))]
        for start, snapshots in groupby(simulate(pair, written), key=attrgetter("start")):
            with ExitStack() as stack:
                files = {name: stack.enter_context(atomic_write(self.folder / name)) for name in pair.file_names(start)}
                for snapshot in snapshots:
                    for name, message in self._messages(pair, snapshot):
                        files[name].write(message)

    def _messages(self, pair: StartPair, snapshot: Snapshot) -> Iterator[tuple[str, bytes]]:
        """Yield all messages of a snapshot, with the name of the file for each."""
        yield from self._forecast_messages("output", pair, snapshot, snapshot.members, pair.years)
        if pair.oracle_years:
            yield from self._forecast_messages("oracle", pair, snapshot, snapshot.oracle, pair.oracle_years)
        valid = snapshot.start + timedelta(hours=snapshot.lead)
        for levels, variables in VARIABLES["analysis"].items():
            name = file_name("analysis", levels, snapshot.start)
            for year, variable, (values,) in self._fields(snapshot.truth, variables, pair.years):
                if variable.name in ACCUMULATED_NAMES:
                    # As in real archives, the truth of an amount is a short forecast, because it covers an interval.
                    since_start = {"type": "fc", "stepType": "accum", "startStep": 0, "endStep": snapshot.lead}
                    keys = {"dataDate": _date(year, snapshot.start), "dataTime": 0} | since_start
                else:
                    keys = {"dataDate": _date(year, valid), "dataTime": 0}
                yield name, self._analyses.encode(values, **_variable_keys(variable), **keys)

    def _forecast_messages(
        self, kind: str, pair: StartPair, snapshot: Snapshot, fields: GaussianFields, years: Sequence[int]
    ) -> Iterator[tuple[str, bytes]]:
        start = snapshot.start
        for levels, variables in VARIABLES[kind].items():
            name = file_name(kind, levels, start)
            for year, variable, simulations in self._fields(fields, variables, years):
                keys = _variable_keys(variable) | {
                    "referenceDate": _date(start.year, start), "dataDate": _date(year, start), "dataTime": 0,
                    "endStep": snapshot.lead, "numberOfForecastsInEnsemble": pair.members + 1,
                }  # fmt: skip
                if pair.shuffled and kind == "output":
                    place = variables.index(variable) + 100 * (levels == "pl")
                    simulations = _shuffled(simulations, pair.seed, year, snapshot, place)
                for number, values in enumerate(simulations, 1):
                    yield name, self._forecasts.encode(values, **keys, perturbationNumber=number)

    def _fields(
        self, fields: GaussianFields, variables: Sequence[Variable], years: Sequence[int]
    ) -> Iterator[tuple[int, Variable, np.ndarray]]:
        """Yield the simulations (M, H, W) of each year and variable on the grid of the files."""
        gaussian = {variable: rows_first(fields[variable]) for variable in variables}
        for number, year in enumerate(years):
            for variable, all_years in gaussian.items():
                size = len(all_years) // len(years)
                fields_of_year = all_years[number * size : (number + 1) * size]
                if variable.name in ACCUMULATED_NAMES:
                    values = self._to_grid_linear(fields_of_year)
                else:
                    values = self._to_grid(fields_of_year, vector=variable.parity == -1)
                if variable.bounds != (None, None):
                    values = values.clamp(*variable.bounds)
                if variable.sea_only:
                    values = values.masked_fill(self._land > 0.5, torch.nan)
                yield year, variable, values.numpy()


def _shuffled(members: np.ndarray, seed: int, year: int, snapshot: Snapshot, number: int) -> np.ndarray:
    """Return the members (M, H, W) of the variable with this `number` in another random order in each cell."""
    month_day = snapshot.start.month * 100 + snapshot.start.day
    kind = 1000 * snapshot.lead + number
    noise = normal_noise(members.shape, seed, NoisePurpose.ORDER, year=year, date=month_day, member=kind)
    return np.take_along_axis(members, noise.numpy().argsort(0), 0)


def rows_first(fields: Tensor) -> Tensor:
    """Return fields (W, H, B) of the Gaussian grid as (B, H, W)."""
    return fields.permute(2, 1, 0).contiguous()


def _variable_keys(variable: Variable) -> dict[str, int | str]:
    level = "isobaricInhPa" if variable.level else "surface"
    return {"typeOfLevel": level, "level": variable.level, "shortName": variable.name}


def _date(year: int, day: date) -> int:
    """Return YYYYMMDD of `day` with its year replaced: the reference year by `year`, the next year by `year` + 1."""
    return (year + day.year - REFERENCE_YEAR) * 10000 + day.month * 100 + day.day
