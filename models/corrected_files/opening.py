"""Opening the files of a correction: the inputs of a corrector, and the raw members of its targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import Url, expand_addresses
from data_pipeline.dates import epoch_seconds
from data_pipeline.formats.cube import Missing
from data_pipeline.formats.open import analysis_fields, ensemble_fields, grid_of_files, static_dataset, stations_in
from data_pipeline.formats.system_files import SystemFiles
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.protocols import Fields
from data_pipeline.regridding.target import TargetGrid
from data_pipeline.samples.inputs import input_fields, starts_without_input
from data_pipeline.samples.selection import absent_systems, fault
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import differences
from models.engines.engine import CorrectorDescription, Engine, with_cells
from models.provenance.groups import check_groups


@dataclass(frozen=True)
class WantedStations:
    """A file of stations at which forecasts on a grid are corrected, and files of the forecast model's surface."""

    path: str
    static_fields: tuple[str, ...] = ()

    @property
    def files(self) -> list[Path]:
        """All files and folders of this machine that are read."""
        return [one for one in expand_addresses([self.path, *self.static_fields]) if not isinstance(one, Url)]

    def open(
        self, engines: Sequence[Engine], forecasts: Sequence[Path], names: Mapping[str, str] | None
    ) -> tuple[Points, Any, str]:
        """Return the stations, the static fields there, and a sentence about the cells that give their forecasts."""
        found, grid = stations_in(self.path, names), grid_of_files(forecasts, names)
        points, sentence = with_cells(engines, found, grid, lambda cells: self._static(cells, names))
        return points, self._static(points, names) or None, sentence

    def _static(self, points: Points, names: Mapping[str, str] | None) -> Any:
        return static_dataset(self.static_fields, names, TargetGrid(points)) if self.static_fields else {}


@dataclass(frozen=True)
class ForecastFiles:
    """Files of forecasts, and a file of analyses; the source of `input_fields`."""

    forecasts: Sequence[Path]
    analyses: Path | None = None
    target: TargetGrid | None = None
    """The grid to which all fields are brought; None if they have the corrector's grid."""
    names: Mapping[str, str] | None = None
    """Other names of variables in these files, as in `data_pipeline.archive.Archive`."""
    missing: Missing = "error"
    """`mask`: missing fields are NaN."""

    def __str__(self) -> str:
        rest = len(self.forecasts) - 1
        return f"{self.forecasts[0]}{f' and {rest} other file' + 's' * (rest > 1) if rest else ''}"

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the forecasts."""
        return ensemble_fields(
            self.forecasts, variables, lead_times, names=self.names, target=self.target, missing=self.missing
        )

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the analyses."""
        assert self.analyses is not None
        return analysis_fields(self.analyses, variables, names=self.names, target=self.target)


def open_forecasts(
    corrector: CorrectorDescription,
    forecasts: Sequence[Path],
    analysis: Path | None = None,
    names: Mapping[str, str] | None = None,
    earlier: Sequence[Path] = (),
) -> tuple[Fields, Fields]:
    """Open the inputs of a corrector in files of forecasts, and the raw members of its targets.

    `earlier` are files of forecasts of earlier starts, for a corrector that reads them.
    """
    task = corrector.task
    missing: Missing = "mask" if task.systems else "error"
    if isinstance(forecasts, SystemFiles):
        forecasts.check(task)
    files = ForecastFiles(forecasts, analysis, corrector.target_grid, names, missing)
    if task.analysis and analysis is None:
        wanted = ", ".join(map(str, task.analysis))
        raise InputError(f"the corrector reads the analysis of {wanted} at the start; give its file with analysis=FILE")
    if (lagged := [one for one in task.formulas if one.lag]) and not earlier:
        raise InputError(
            f"the corrector reads {lagged[0]} of forecasts that started {lagged[0].lag} h before; give their files "
            "with earlier=[FILES]"
        )
    if corrector.target_grid is None and isinstance(grid := grid_of_files(files.forecasts, names), ReducedGrid):
        raise _other_grid(files, grid, corrector.grid)
    inputs = input_fields(files, task, replace(files, forecasts=tuple(earlier)) if earlier else None)
    if not corrector.grid.matches(inputs.grid):
        raise _other_grid(files, inputs.grid, corrector.grid)
    check_groups(corrector.provenance, task, inputs.numbers)
    for init, lead in inputs.incomplete if task.systems else ():
        if absent_systems(task, inputs, (init, lead)) == task.absent(inputs.numbers):
            seconds = int(epoch_seconds(inputs.init_times[init]))
            what = fault(inputs.incomplete[init, lead], seconds, inputs.lead_times[lead])
            raise InputError(f"{what}, and has other members of the same group; complete the files")
    if without := starts_without_input(inputs):
        start, channels = next(iter(without.items()))
        both = " or ".join(map(str, filter(None, (files, analysis, *earlier))))
        raise InputError(
            f"{both} lacks {', '.join(channels)} for the forecast of {start}, one of {len(without)} that cannot be "
            "corrected; add these fields, or correct a copy without those forecasts"
        )
    if corrector.meanings and (
        found := differences(corrector.meanings, task.lead_times, inputs.meanings, inputs.lead_times)
    ):
        raise InputError(
            f"the corrector was trained on {'; '.join(found)} as in {files}; correct a forecast with the same units, "
            "levels and intervals"
        )
    return inputs, files.ensemble_fields(task.targets, task.lead_times)


def _other_grid(files: ForecastFiles, grid: Grid, own: Grid) -> InputError:
    return InputError(
        f"{files} has {grid}, the corrector {own}; interpolate it to that grid, or train the corrector "
        "with data.archive.grid, so that it brings forecasts to its grid"
    )
