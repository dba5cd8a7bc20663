"""The verb `correct`: copies a GRIB forecast with corrected members in place of the raw ones.

On a mesh, the first rank reads and writes the files, message by message. All ranks correct their tile of each forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib import Lattice, Message, rewrite
from data_pipeline.formats.netcdf import is_netcdf
from data_pipeline.formats.open import ensemble_fields
from data_pipeline.inputs import input_fields, skipped_starts
from data_pipeline.protocols import Fields
from data_pipeline.sample import Sample
from data_pipeline.sample_reader import read_sample, read_tile
from data_pipeline.task import Variable
from models.corrector import Corrector
from models.coupling import check_member_options
from models.device import choose_device
from models.gaps import Gaps, count_gaps
from models.parallel.mesh import Mesh, join_mesh
from models.protocol import claims

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
        summary = correct(corrector, forecast, output, mesh, levels, seed, analysis, device)
        names = ", ".join(map(str, corrector.task.targets))
        leads = ", ".join(f"+{lead}" for lead in corrector.task.lead_times)
        mesh.print(
            f"{output}: {summary.messages} messages corrected ({names} at {leads} h), all others copied unchanged"
        )
        for note in summary.notes:
            mesh.print(note)


@dataclass(frozen=True)
class CorrectionSummary:
    """Result of `correct`."""

    messages: int
    """Number of corrected messages."""
    notes: list[str]
    """Notes for the user about missing values."""


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
    if is_netcdf(path):
        raise InputError(f"{path} is NetCDF; correct reads and writes GRIB only, so convert the forecast to GRIB")
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
    device: torch.device | str = "cpu",
) -> CorrectionSummary:
    """Copy the file `forecast` to `output` with the corrected members in place of the raw ones.

    The model computes on `device`. `quantile_levels` and `seed` are those of `written_members`. `analysis` is a file
    of analyses at the starts of the forecasts, for a corrector that reads them.

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
    inputs, raw = mesh.run_on_first(lambda: open_forecasts(corrector, forecast, analysis))
    own = corrector.on(mesh.domain(corrector.grid))
    always, known = training_cells(own)
    tiles = TileCorrector(
        own.to(device), inputs, raw, mesh, quantile_levels, seed, torch.device(device), always, known, Gaps(own.task)
    )
    if not mesh.first:
        return tiles.serve()
    try:
        count = rewrite_forecasts(tiles, forecast, output)
    except InputError as error:
        mesh.broadcast(error)
        raise
    return mesh.broadcast(CorrectionSummary(count, tiles.gaps.sentences()))


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


def open_forecasts(corrector: Corrector, forecast: Path, analysis: Path | None = None) -> tuple[Fields, Fields]:
    """Open the inputs of the corrector, and the raw members of its targets."""
    task = corrector.task
    if task.analysis and analysis is None:
        wanted = ", ".join(map(str, task.analysis))
        raise InputError(f"the corrector reads the analysis of {wanted} at the start; give its file with analysis=FILE")
    if analysis is not None and not task.analysis:
        raise InputError(f"the corrector reads no analysis; remove analysis={analysis}")
    inputs = input_fields(ForecastFiles(forecast, analysis), task)
    if not corrector.grid.matches(inputs.grid):
        raise InputError(f"{forecast} has {inputs.grid}, the corrector {corrector.grid}; interpolate it to that grid")
    if len(starts := skipped_starts(inputs)):
        files = " or ".join(map(str, filter(None, (forecast, analysis))))
        raise InputError(
            f"{files} lacks one of {', '.join(map(str, task.further))} for the forecast of {starts[0]}, one of "
            f"{len(starts)} that cannot be corrected; add these fields, or remove those forecasts from {forecast}"
        )
    return inputs, ensemble_fields(forecast, task.targets, task.lead_times)


@dataclass(frozen=True)
class ForecastFiles:
    """A GRIB file of forecasts, and a file of analyses in GRIB or NetCDF; the source of `input_fields`."""

    forecasts: Path
    analyses: Path | None

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the forecasts."""
        return ensemble_fields(self.forecasts, variables, lead_times)

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the analyses."""
        return Archive([], [str(self.analyses)]).analysis_fields(variables)


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


def rewrite_forecasts(tiles: TileCorrector, forecast: Path, output: Path) -> int:
    """Copy the file `forecast` to `output` with corrected members; return the number of corrected messages."""
    task, numbers = tiles.corrector.task, tiles.raw.numbers
    starts = tiles.inputs.init_times.tolist()
    # Packed one by one, members closer than a step of the packing could change their order.
    lattices = [Lattice.of(forecast, variable) for variable in task.targets]
    corrected: dict[Message, np.ndarray] = {}

    def correction(message: Message) -> np.ndarray | None:
        if message.variable not in task.targets or message.lead_time not in task.lead_times:
            return None
        if message not in corrected:
            members = tiles.request(starts.index(message.init_time), task.lead_times.index(message.lead_time))
            for k, (variable, lattice) in enumerate(zip(task.targets, lattices, strict=True)):
                for number, field in zip(numbers, lattice.round(members[:, k]), strict=True):
                    corrected[message._replace(variable=variable, number=number)] = field
        # `rewrite` asks for each message once; a forecast is kept only until its last member is written.
        return corrected.pop(message)

    return rewrite(forecast, output, correction)


if __name__ == "__main__":
    main()
