"""The verb `correct`: a GRIB forecast in, the same file with corrected members out.

On a mesh the first rank reads and writes the file in its order; all correct their tile of each forecast it comes to.
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
from models.coupling import check_options
from models.device import device_of
from models.gaps import Gaps, gaps_of
from models.parallel.mesh import Mesh, join_mesh
from models.protocol import claims

OTHER_FORMATS = (
    ".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf", ".hdf5", ".zarr", ".npy", ".npz", ".csv", ".safetensors",
    ".zip", ".gz", ".bz2", ".xz", ".zst", ".tar",
)  # fmt: skip
"""Endings that promise something else than GRIB; others, such as those of dates, promise nothing."""


@verb("correct")
def main(cfg: DictConfig) -> None:
    """Read, correct, write, say what was done."""
    options = plain(cfg)
    target = output_file(options["output"])
    with join_mesh(options["mesh"]) as mesh:
        device = device_of(options["device"], mesh.ranks)
        corrector = Corrector.load(one_file("corrector", options["corrector"]))
        source = forecast_file(options["input"])
        analysis = None if options["analysis"] is None else one_file("analysis", options["analysis"])
        done = correct(corrector, source, target, mesh, options["levels"], options["seed"], analysis, device)
        names = ", ".join(map(str, corrector.task.targets))
        leads = ", ".join(f"+{lead}" for lead in corrector.task.lead_times)
        mesh.print(
            f"{target}: {done.messages} messages corrected ({names} at {leads} h), all others copied as they were"
        )
        for note in done.notes:
            mesh.print(note)


@dataclass(frozen=True)
class Done:
    """How many messages were corrected, and what the user must know of missing values."""

    messages: int
    notes: list[str]


def one_file(option: str, value: object) -> Path:
    """Return the path that an option names; refuse what is not one path."""
    if isinstance(value, list) and option == "input":
        raise InputError(
            f"input must be one GRIB file, got a list of {len(value)}; join files into one, for example with "
            "`cat A B > IN.grib`"
        )
    if not isinstance(value, str) or not value:
        raise InputError(f"{option} must be the path of one file, got {value!r}; write a number as ./{value}")
    return Path(value).expanduser()


def forecast_file(value: object) -> Path:
    """Return the path of the input; refuse what is no file, or NetCDF."""
    path = one_file("input", value)
    if path.is_dir():
        raise InputError(f"input={path} is a folder; name one GRIB file")
    if not path.exists():
        raise InputError(f"there is no file {path}; check input, which is one GRIB file (patterns are not expanded)")
    if is_netcdf(path):
        raise InputError(f"{path} is NetCDF; correct reads and writes GRIB only, so give the forecast as GRIB")
    return path


def output_file(value: object) -> Path:
    """Return the path of the output; refuse one whose ending promises another format."""
    path = one_file("output", value)
    if path.suffix.lower() in OTHER_FORMATS:
        raise InputError(
            f"output={path} ends in {path.suffix}, but correct writes GRIB; choose another name, such as "
            f"{path.with_suffix('.grib')}"
        )
    return path


def correct(
    corrector: Corrector,
    source: Path,
    target: Path,
    mesh: Mesh | None = None,
    levels: str = "hazen",
    seed: int = 0,
    analysis: Path | None = None,
    device: torch.device | str = "cpu",
) -> Done:
    """Write `source` to `target` with the corrected members in place of the raw ones.

    The model computes on `device`. `levels` and `seed` are those of `written_members`. `analysis` is a file of analyses
    at the starts of the forecasts, for a corrector that reads them.

    The file does not depend on the mesh, except that a network computes in single precision: one of its values that
    lies half-way between two steps of the packing may be rounded either way.
    """
    mesh = mesh or Mesh.single()
    check_options(levels, seed)
    if mesh.data > 1:
        raise InputError(
            f"mesh has {mesh.data} for its first number, but one forecast after the other is corrected; make it 1 "
            "and let the others say how many processes share the globe"
        )
    opened = mesh.run_on_first(lambda: open_forecasts(corrector, source, analysis))
    own = corrector.on(mesh.domain(corrector.grid))
    always, known = training_cells(own)
    tiles = Tiles(own.to(device), *opened, mesh, levels, seed, torch.device(device), always, known, Gaps(own.task))
    if not mesh.first:
        return tiles.serve()
    try:
        count = rewrite_forecasts(tiles, source, target)
    except InputError as error:
        mesh.broadcast(error)
        raise
    return mesh.broadcast(Done(count, tiles.gaps.sentences()))


def training_cells(corrector: Corrector) -> tuple[Tensor, Tensor]:
    """Return `always` (C, H, W) and `known` (T, H, W) of the normaliser on the own tile, on the CPU.

    Of a committee, 1 is only what all of its correctors say.
    """
    parts = [part for part in corrector.modules() if isinstance(part, Corrector)]
    normalizers = [part.normalizer for part in parts if not claims(part.model).physical] or [corrector.normalizer]
    return tuple(
        corrector.domain.cut(torch.stack([getattr(normalizer, name) for normalizer in normalizers]).amin(0)).cpu()
        for name in ("always", "known")
    )  # type: ignore[return-value]


def open_forecasts(corrector: Corrector, source: Path, analysis: Path | None = None) -> tuple[Fields, Fields]:
    """Open what the corrector reads of a file, and the raw members of its targets."""
    task = corrector.task
    if task.analysis and analysis is None:
        wanted = ", ".join(map(str, task.analysis))
        raise InputError(f"the corrector reads the analysis of {wanted} at the start; name its file with analysis=FILE")
    if analysis is not None and not task.analysis:
        raise InputError(f"the corrector reads no analysis; leave out analysis={analysis}")
    inputs = input_fields(Files(source, analysis), task)
    if not corrector.grid.matches(inputs.grid):
        raise InputError(f"{source} has {inputs.grid}, the corrector was made for {corrector.grid}; it needs that grid")
    if len(starts := skipped_starts(inputs)):
        files = " or ".join(map(str, filter(None, (source, analysis))))
        raise InputError(
            f"{files} lacks one of {', '.join(map(str, task.further))} for the forecast of {starts[0]}, one of "
            f"{len(starts)} that cannot be corrected; add these fields, or leave those forecasts out of {source}"
        )
    return inputs, ensemble_fields(source, task.targets, task.lead_times)


@dataclass(frozen=True)
class Files:
    """A forecast in GRIB and a file of `analyses`, in GRIB or NetCDF, for `input_fields`."""

    forecasts: Path
    analyses: Path | None

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the forecasts."""
        return ensemble_fields(self.forecasts, variables, lead_times)

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the analyses."""
        return Archive([], [str(self.analyses)]).analysis_fields(variables)


@dataclass(frozen=True)
class Tiles:
    """Corrected members of the forecasts of a file: the first rank asks for them, each makes its tile."""

    corrector: Corrector
    inputs: Fields
    raw: Fields
    mesh: Mesh
    levels: str
    seed: int
    device: torch.device
    always: Tensor
    known: Tensor
    """Both are those of `training_cells`, for the own tile."""
    gaps: Gaps
    """Of all forecasts so far, on the first rank."""

    def ask(self, init: int, lead: int) -> np.ndarray:
        """Return the members (M, T, H, W) of the forecast at these positions; the other ranks `serve` meanwhile."""
        self.mesh.broadcast((init, lead))
        tiles = self._make(init, lead)
        assert tiles is not None
        self.gaps.add(reduce(add, [missing for _, missing in tiles]))
        return self.corrector.domain.join([members for members, _ in tiles])

    def serve(self) -> Done:
        """Make what the first rank asks for until it says what was done, or what went wrong."""
        while isinstance(order := self.mesh.broadcast(None), tuple):
            with suppress(InputError):  # all ranks have it, and the first one says it when it has cleaned up
                self._make(*order)
        if isinstance(order, InputError):
            raise order
        return order

    def _make(self, init: int, lead: int) -> list[tuple[np.ndarray, Tensor]] | None:
        """Return the tiles of all ranks on the first one: members, and the counts of `gaps_of`."""
        sample, raw = self.mesh.run_on_all(lambda: self._read(init, lead))
        return self.mesh.gather(self.mesh.run_on_all(lambda: self._corrected(sample, raw)))

    @torch.no_grad()
    def _corrected(self, sample: Sample, raw: Tensor) -> tuple[np.ndarray, Tensor]:
        """Return the members (M, T, H, W) of the own tile, and the counts of `gaps_of`."""
        batch = Sample(*(tensor[None].to(self.device) for tensor in sample))
        members = self.corrector.members(batch, raw[:, None].to(self.device), self.levels, self.seed)[:, 0].cpu()
        task = self.corrector.task
        covered = sample.mask[list(task.target_channels)]
        if lost := int((covered & ~members.isfinite().all(0)).sum()):
            start = np.datetime64(int(sample.init_time), "s")
            raise InputError(
                f"the corrector gives no number at {lost} of {covered.numel()} cells of the forecast of {start} "
                f"+{int(sample.lead_time)} h, where the input has all members; train it on years with an analysis there"
            )
        return members.numpy(), gaps_of(sample, raw, self.always, self.known, task)

    def _read(self, init: int, lead: int) -> tuple[Sample, Tensor]:
        """Read the own tile of a forecast."""
        domain, task = self.corrector.domain, self.corrector.task
        # In single precision, members that the file tells apart may be equal and lose their order.
        exact = np.empty((len(self.raw.numbers), len(task.targets), *domain.own_shape), np.float64)
        read_tile(self.raw, init, lead, exact, *domain.tile)
        sample = read_sample(self.inputs, task, domain.cut(self.corrector.static), init, lead, *domain.tile)
        return sample, torch.from_numpy(exact)


def rewrite_forecasts(tiles: Tiles, source: Path, target: Path) -> int:
    """Write `source` to `target` with the members of `tiles` in place of the raw ones; return how many."""
    task, numbers = tiles.corrector.task, tiles.raw.numbers
    starts = tiles.inputs.init_times.tolist()
    # Members packed one by one could change places where they are closer than a step of the packing.
    lattices = [Lattice.of(source, variable) for variable in task.targets]
    corrected: dict[Message, np.ndarray] = {}

    def correction(message: Message) -> np.ndarray | None:
        if message.variable not in task.targets or message.lead_time not in task.lead_times:
            return None
        if message not in corrected:
            members = tiles.ask(starts.index(message.init_time), task.lead_times.index(message.lead_time))
            for k, (variable, lattice) in enumerate(zip(task.targets, lattices, strict=True)):
                for number, field in zip(numbers, lattice.round(members[:, k]), strict=True):
                    corrected[message._replace(variable=variable, number=number)] = field
        # Each message is asked for once; a forecast is held only until its last member is written.
        return corrected.pop(message)

    return rewrite(source, target, correction)


if __name__ == "__main__":
    main()
