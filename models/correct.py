"""The verb `correct`: copies a GRIB forecast with corrected members in place of the raw ones.

On a mesh, the first rank reads and writes the files, message by message. All ranks correct their tile of each forecast.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from conf import plain, verb
from data_pipeline.common.errors import InputError
from data_pipeline.common.file_format import (
    GRIB_FORMAT,
    HDF5_FORMAT,
    NETCDF_FORMAT,
    UNKNOWN_FORMAT,
    ZARR_FORMAT,
    file_format,
    wrong_format,
)
from data_pipeline.formats.grib import Lattice, Message, MessageRegridder, NewMessage, rewrite
from data_pipeline.formats.open import analysis_fields, ensemble_fields, grid_of_files
from data_pipeline.formats.variables import checked_names
from data_pipeline.grid import Grid
from data_pipeline.inputs import input_fields, starts_without_input
from data_pipeline.meaning import differences
from data_pipeline.protocols import Fields
from data_pipeline.reduced_grid import ReducedGrid
from data_pipeline.regridding.target import TargetGrid
from data_pipeline.sample import Sample
from data_pipeline.sample_reader import read_sample, read_tile
from data_pipeline.task import Variable
from models.corrector import Corrector
from models.coupling import check_member_options
from models.device import choose_device
from models.field_spool import FieldSpool
from models.gaps import Gaps, count_gaps
from models.parallel.mesh import Mesh, join_mesh
from models.protocol import claims
from models.target_messages import TargetMessages

OTHER_FORMATS = (
    ".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf", ".hdf5", ".zarr", ".npy", ".npz", ".csv", ".safetensors",
    ".zip", ".gz", ".bz2", ".xz", ".zst", ".tar",
)  # fmt: skip
"""File name endings of other formats. Any other ending, such as a date, may be a GRIB file."""


@verb("correct")
def main(cfg: DictConfig) -> None:
    """Check the options, correct the file, print a summary."""
    options = plain(cfg)
    output = output_path(options["output"])
    with join_mesh(options["mesh"]) as mesh:
        device = choose_device(options["device"], mesh.ranks)
        corrector = Corrector.load(file_path("corrector", options["corrector"]))
        forecast = forecast_path(options["input"])
        analysis = None if options["analysis"] is None else file_path("analysis", options["analysis"])
        levels, seed = options["quantile_levels"], options["seed"]
        names = checked_names("variable_names", options["variable_names"])
        summary = correct(corrector, forecast, output, mesh, levels, seed, analysis, names, device)
        targets = ", ".join(map(str, corrector.task.targets))
        leads = ", ".join(f"+{lead}" for lead in corrector.task.lead_times)
        mesh.print(
            f"{output}: {summary.messages} messages corrected ({targets} at {leads} h), all others copied unchanged"
        )
        for note in summary.notes:
            mesh.print(note)


@dataclass(frozen=True)
class CorrectionSummary:
    """Result of `correct`."""

    messages: int
    """Number of corrected messages."""
    notes: list[str]
    """Notes for the user about other grids and missing values."""


def file_path(option: str, value: object) -> Path:
    """Return the path in the value of an option. Raises `InputError` unless the value is one path."""
    if isinstance(value, list) and option == "input":
        raise InputError(
            f"input must be one GRIB file, got a list of {len(value)}; join files into one, for example with "
            "`cat A B > IN.grib`"
        )
    if not isinstance(value, str) or not value:
        raise InputError(f"{option} must be the path of one file, got {value!r}; write a number as ./{value}")
    return Path(value).expanduser()


def forecast_path(value: object) -> Path:
    """Return the path of the input file. Raises `InputError` for a folder, a missing file, and a NetCDF file."""
    path = file_path("input", value)
    if path.is_dir():
        raise InputError(f"input={path} is a folder; name one GRIB file")
    if not path.exists():
        raise InputError(f"there is no file {path}; check input, which is one GRIB file (patterns are not expanded)")
    found = file_format(path)
    if found in (NETCDF_FORMAT, HDF5_FORMAT, ZARR_FORMAT):
        raise InputError(f"{path} is {found}; correct reads and writes GRIB only, so convert the forecast to GRIB")
    if found not in (GRIB_FORMAT, UNKNOWN_FORMAT):
        raise wrong_format(path, "GRIB")
    return path


def output_path(value: object) -> Path:
    """Return the path of the output file. Raises `InputError` for a file name ending of another format."""
    path = file_path("output", value)
    if path.suffix.lower() in OTHER_FORMATS:
        raise InputError(
            f"output={path} ends in {path.suffix}, but correct writes GRIB; choose another name, such as "
            f"{path.with_suffix('.grib')}"
        )
    return path


def correct(
    corrector: Corrector,
    forecast: Path,
    output: Path,
    mesh: Mesh | None = None,
    quantile_levels: str = "hazen",
    seed: int = 0,
    analysis: Path | None = None,
    names: Mapping[str, str] | None = None,
    device: torch.device | str = "cpu",
) -> CorrectionSummary:
    """Copy the file `forecast` to `output` with the corrected members in place of the raw ones.

    The model computes on `device`. `quantile_levels` and `seed` are those of `written_members`. `analysis` is a file
    of analyses at the starts of the forecasts, for a corrector that reads them. `names` are other names of variables in
    these files, as in `data_pipeline.archive.Archive`.

    The output does not depend on the mesh, with one exception: networks compute in single precision, so a value
    half-way between two steps of the packing may be rounded either way.
    """
    mesh = mesh or Mesh.single()
    check_member_options(quantile_levels, seed)
    if mesh.data > 1:
        raise InputError(
            f"the first number of mesh must be 1, got {mesh.data}: forecasts are corrected one after the other; "
            "set the other numbers to the processes that share the globe"
        )
    inputs, raw = mesh.run_on_first(lambda: open_forecasts(corrector, forecast, analysis, names))
    own = corrector.on(mesh.domain(corrector.grid))
    always, known = training_cells(own)
    tiles = TileCorrector(
        own.to(device), inputs, raw, mesh, quantile_levels, seed, torch.device(device), always, known, Gaps(own.task)
    )
    if not mesh.first:
        return tiles.serve()
    try:
        count, regridded = rewrite_forecasts(tiles, forecast, output, names)
    except InputError as error:
        mesh.broadcast(error)
        raise
    return mesh.broadcast(CorrectionSummary(count, [*regridded, *tiles.gaps.sentences()]))


def training_cells(corrector: Corrector) -> tuple[Tensor, Tensor]:
    """Return `always` (C, H, W) and `known` (T, H, W) of the normaliser on the own tile, on the CPU.

    For a committee, the smallest values of all its correctors.
    """
    parts = [part for part in corrector.modules() if isinstance(part, Corrector)]
    normalizers = [part.normalizer for part in parts if not claims(part.model).physical] or [corrector.normalizer]
    return tuple(
        corrector.domain.cut(torch.stack([getattr(normalizer, name) for normalizer in normalizers]).amin(0)).cpu()
        for name in ("always", "known")
    )  # type: ignore[return-value]


def open_forecasts(
    corrector: Corrector, forecast: Path, analysis: Path | None = None, names: Mapping[str, str] | None = None
) -> tuple[Fields, Fields]:
    """Open the inputs of the corrector, and the raw members of its targets."""
    task = corrector.task
    if task.analysis and analysis is None:
        wanted = ", ".join(map(str, task.analysis))
        raise InputError(f"the corrector reads the analysis of {wanted} at the start; give its file with analysis=FILE")
    if analysis is not None and not task.analysis:
        raise InputError(f"the corrector reads no analysis; remove analysis={analysis}")
    if corrector.target_grid is None and isinstance(grid := grid_of_files(forecast, names), ReducedGrid):
        raise _other_grid(forecast, grid, corrector)
    source = ForecastFiles(forecast, analysis, corrector.target_grid, names)
    inputs = input_fields(source, task)
    if not corrector.grid.matches(inputs.grid):
        raise _other_grid(forecast, inputs.grid, corrector)
    if without := starts_without_input(inputs):
        start, channels = next(iter(without.items()))
        files = " or ".join(map(str, filter(None, (forecast, analysis))))
        raise InputError(
            f"{files} lacks {', '.join(channels)} for the forecast of {start}, one of {len(without)} that cannot be "
            "corrected; add these fields, or correct a copy without those forecasts"
        )
    if corrector.meanings and (
        found := differences(corrector.meanings, task.lead_times, inputs.meanings, inputs.lead_times)
    ):
        raise InputError(
            f"the corrector was trained on {'; '.join(found)} as in {forecast}; correct a forecast with the same units "
            "and intervals"
        )
    return inputs, source.ensemble_fields(task.targets, task.lead_times)


def _other_grid(forecast: Path, grid: Grid, corrector: Corrector) -> InputError:
    return InputError(
        f"{forecast} has {grid}, the corrector {corrector.grid}; interpolate it to that grid, or train the corrector "
        "with data.archive.grid, so that it brings forecasts to its grid"
    )


@dataclass(frozen=True)
class ForecastFiles:
    """A GRIB file of forecasts, and a file of analyses in GRIB or NetCDF; the source of `input_fields`."""

    forecasts: Path
    analyses: Path | None
    target: TargetGrid | None = None
    """The grid to which all fields are brought; None if they have the corrector's grid."""
    names: Mapping[str, str] | None = None

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the forecasts."""
        return ensemble_fields(self.forecasts, variables, lead_times, names=self.names, target=self.target)

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the analyses."""
        assert self.analyses is not None
        return analysis_fields(self.analyses, variables, names=self.names, target=self.target)


@dataclass(frozen=True)
class TileCorrector:
    """Corrects forecasts on all ranks of a mesh: the first rank requests a forecast, each rank corrects its tile."""

    corrector: Corrector
    inputs: Fields
    raw: Fields
    mesh: Mesh
    quantile_levels: str
    seed: int
    device: torch.device
    always: Tensor
    known: Tensor
    """Both from `training_cells`, on the own tile."""
    gaps: Gaps
    """Gaps of all forecasts so far, on the first rank."""

    def request(self, init: int, lead: int) -> np.ndarray:
        """Return the members (M, T, H, W) of the forecast at these positions; the other ranks must be in `serve`."""
        self.mesh.broadcast((init, lead))
        tiles = self._correct_tiles(init, lead)
        assert tiles is not None
        self.gaps.add(reduce(add, [missing for _, missing in tiles]))
        return self.corrector.domain.join([members for members, _ in tiles])

    def serve(self) -> CorrectionSummary:
        """Correct the requested tiles until the first rank broadcasts a summary or an error."""
        while isinstance(request := self.mesh.broadcast(None), tuple):
            with suppress(InputError):  # all ranks get this error; the first rank raises it after it has cleaned up
                self._correct_tiles(*request)
        if isinstance(request, InputError):
            raise request
        return request

    def _correct_tiles(self, init: int, lead: int) -> list[tuple[np.ndarray, Tensor]] | None:
        """Return on the first rank, for the tiles of all ranks, members and the result of `count_gaps`."""
        sample, raw = self.mesh.run_on_all(lambda: self._read(init, lead))
        return self.mesh.gather(self.mesh.run_on_all(lambda: self._correct_tile(sample, raw)))

    @torch.no_grad()
    def _correct_tile(self, sample: Sample, raw: Tensor) -> tuple[np.ndarray, Tensor]:
        """Return the members (M, T, H, W) of the own tile, and the result of `count_gaps`."""
        batch = Sample(*(tensor[None].to(self.device) for tensor in sample))
        raw_members = raw[:, None].to(self.device)
        members = self.corrector.members(batch, raw_members, self.quantile_levels, self.seed)[:, 0].cpu()
        task = self.corrector.task
        covered = sample.mask[list(task.target_channels)]
        if lost := int((covered & ~members.isfinite().all(0)).sum()):
            start = np.datetime64(int(sample.init_time), "s")
            raise InputError(
                f"the corrected forecast of {start} +{int(sample.lead_time)} h has no value in {lost} of "
                f"{covered.numel()} cells where the input has all members; "
                "train the corrector on years with an analysis there"
            )
        return members.numpy(), count_gaps(sample, raw, self.always, self.known, task)

    def _read(self, init: int, lead: int) -> tuple[Sample, Tensor]:
        """Read the own tile of a forecast."""
        domain, task = self.corrector.domain, self.corrector.task
        # In single precision, different members may become equal and lose their order.
        exact = np.empty((len(self.raw.numbers), len(task.targets), *domain.own_shape), np.float64)
        read_tile(self.raw, init, lead, exact, *domain.tile)
        sample = read_sample(self.inputs, task, domain.cut(self.corrector.static), init, lead, *domain.tile)
        return sample, torch.from_numpy(exact)


def rewrite_forecasts(
    tiles: TileCorrector, forecast: Path, output: Path, names: Mapping[str, str] | None = None
) -> tuple[int, list[str]]:
    """Copy the file `forecast` to `output` with corrected members.

    Return the number of corrected messages, a sentence for each grid of the input that is not the corrector's, and one
    about messages that are new.
    """
    task, numbers = tiles.corrector.task, tiles.raw.numbers
    starts = tiles.inputs.init_times.tolist()
    targets = TargetMessages.of(task, tiles.raw.meanings, forecast, names)
    # Packed one by one, members closer than a step of the packing could change their order.
    lattices = [Lattice.of(forecast, variable, names) for variable in targets.variables]
    added: set[Hashable] = set()
    new_targets: set[str] = set()

    def correction(message: Message) -> np.ndarray | NewMessage | None:
        found = targets.mode_of(message)
        if found is None:
            return None
        target, mode = found
        place = message.init_time, message.lead_time
        key = target, *place, message.number
        if key in added:
            return None
        if key not in spool:
            members = tiles.request(starts.index(message.init_time), task.lead_times.index(message.lead_time))
            corrected: dict[Hashable, np.ndarray] = {}
            for k, (lattice, factor) in enumerate(zip(lattices, targets.factors, strict=True)):
                for number, field in zip(numbers, lattice.round(members[:, k] / factor), strict=True):
                    corrected[k, *place, number] = field
            spool.add(corrected)
        field = spool.take(key)
        if mode == "replace":
            return field
        added.add(key)
        new_targets.add(str(task.targets[target]))
        return NewMessage(targets.new_message(target, message), targets.new_keys(target, message), field)

    with FieldSpool(output) as spool:
        target = tiles.corrector.target_grid
        regridder = MessageRegridder(target) if target else None
        count = rewrite(forecast, output, correction, regridder, names)
    notes = regridder.sentences() if regridder else []
    if added:
        notes.append(
            f"{len(added)} of the corrected messages are new ({', '.join(sorted(new_targets))}): each follows a "
            "message that it is made from, which is copied unchanged"
        )
    return count, notes


if __name__ == "__main__":
    main()
