"""The verb `correct`: a GRIB forecast in, the same file with corrected members out.

On a mesh the first rank reads and writes the file in its order; all correct their tile of each forecast it comes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from conf import plain, verb
from data_pipeline.archive import Archive
from data_pipeline.dataset import read_sample, read_tile
from data_pipeline.errors import InputError
from data_pipeline.fields import Fields
from data_pipeline.grib import Lattice, Message, ensemble_fields, rewrite
from data_pipeline.inputs import input_fields, left_out
from data_pipeline.sample import Sample
from data_pipeline.task import Variable
from models.corrector import Corrector
from models.coupling import check_options
from models.spatial.mesh import Mesh, joined


@verb("correct")
def main(cfg: DictConfig) -> None:
    """Read, correct, write, say what was done."""
    with joined(plain(cfg)["mesh"]) as mesh:
        corrector = Corrector.load(cfg.corrector)
        analysis = None if cfg.analysis is None else Path(cfg.analysis)
        count = correct(corrector, Path(cfg.input), Path(cfg.output), mesh, cfg.levels, cfg.seed, analysis)
        names = ", ".join(map(str, corrector.task.targets))
        leads = ", ".join(f"+{lead}" for lead in corrector.task.lead_times)
        mesh.say(f"{cfg.output}: {count} messages corrected ({names} at {leads} h), all others copied as they were")


def correct(
    corrector: Corrector,
    source: Path,
    target: Path,
    mesh: Mesh | None = None,
    levels: str = "hazen",
    seed: int = 0,
    analysis: Path | None = None,
) -> int:
    """Write `source` to `target` with the corrected members in place of the raw ones; return how many.

    `levels` and `seed` are those of `written_members`. `analysis` is a file of analyses at the starts of the forecasts,
    for a corrector that reads them.
    The file does not depend on the mesh, but that a value of a network, which computes in single precision, may be
    rounded to the other one of two steps of the packing where it lies half-way between them.
    """
    mesh = mesh or Mesh.alone()
    if mesh.data > 1:
        raise InputError(
            f"mesh has {mesh.data} for its first number, but one forecast after the other is corrected; make it 1 "
            "and let the others say how many processes share the globe"
        )
    check_options(levels, seed)
    opened = mesh.once(lambda: open_forecasts(corrector, source, analysis))
    tiles = Tiles(corrector.on(mesh.domain(corrector.grid)), *opened, mesh, levels, seed)
    if not mesh.first:
        return tiles.serve()
    try:
        count = rewrite_forecasts(tiles, source, target)
    except InputError as error:
        mesh.broadcast(error)
        raise
    return mesh.broadcast(count)


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
    if len(starts := left_out(inputs)):
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

    def ask(self, init: int, lead: int) -> np.ndarray:
        """Return the members (M, T, H, W) of the forecast at these positions; the other ranks `serve` meanwhile."""
        self.mesh.broadcast((init, lead))
        tiles = self._make(init, lead)
        assert tiles is not None
        return self.corrector.domain.join(tiles)

    def serve(self) -> int:
        """Make what the first rank asks for until it says how many messages it corrected, or what went wrong."""
        while isinstance(order := self.mesh.broadcast(None), tuple):
            with suppress(InputError):  # all ranks have it, and the first one says it when it has cleaned up
                self._make(*order)
        if isinstance(order, InputError):
            raise order
        return order

    @torch.no_grad()
    def _make(self, init: int, lead: int) -> list[np.ndarray] | None:
        """Return the tiles of all ranks on the first one."""
        sample, raw = self.mesh.each(lambda: self._read(init, lead))
        batch = Sample(*(tensor[None] for tensor in sample))
        members = self.corrector.members(batch, raw[:, None], self.levels, self.seed)
        return self.mesh.gather(members[:, 0].numpy())

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
