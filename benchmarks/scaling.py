"""A training step of the U-Net on several ranks: bytes sent, memory, time, and the estimates of `trainer.mesh=auto`.

The step has the shipped U-Net, one sample for each data rank, and the loss and averaged gradients of
`deepweather train`. The ratios are:

- bytes at the collective calls divided by the minimum, which is computed from the derivatives of each layer;
- peak memory of a rank divided by its share of the memory of one process plus its halo;
- memory that one rank keeps for the backward pass, relative to a U-Net of plain `torch.nn`;
- strong and weak efficiency of two processes of one thread each, with gloo on this machine;
- relative error of the estimates of `trainer.mesh=auto`, for one, two and four ranks; the rates are fitted to one and
  two ranks, or taken from `training/step/mesh_choice.py` with `--shipped-rates`;
- how much longer a step takes on the mesh with the shortest estimate than on the fastest one, of those measured.

Meshes are [data, bands, sectors, channels]. `--times` measures times only, `--counts` bytes and memory only.

    python -m benchmarks.scaling [--json] [--rounds 2] [--rows 361] [--times | --counts] [--shipped-rates]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from benchmarks.common import command_line, elapsed, report
from benchmarks.mesh.fitted_rates import fit_rates
from benchmarks.mesh.plain_unet import PlainUNet
from benchmarks.mesh.ranks import CORES, run_ranks
from benchmarks.mesh.traffic import BytesByKind, count_traffic, minimal_traffic, traffic_table
from benchmarks.mesh.training_step import (
    UNET_SPEC,
    UNET_TASK,
    TrainingStep,
    peak_allocation,
    saved_bytes,
    simulated_rank,
)
from data_pipeline.grid import Grid
from models.corrector import build_model
from models.parallel.mesh import Mesh, arrange_mesh
from training.step.mesh_choice import MACHINES, MachineRates, MeshEstimate, estimate_step


@dataclass(frozen=True)
class MeshCase:
    """A grid and a mesh: data ranks, bands, sectors, channel ranks; every data rank has one sample."""

    grid: Grid
    data: int = 1
    bands: int = 1
    sectors: int = 1
    channels: int = 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The numbers of the mesh."""
        return self.data, self.bands, self.sectors, self.channels

    @property
    def tile_shape(self) -> tuple[int, int, int]:
        """The numbers of the mesh without those of the data axis."""
        return self.shape[1:]

    @property
    def tiles(self) -> int:
        """Number of ranks that share a sample."""
        return math.prod(self.tile_shape)

    @property
    def ranks(self) -> int:
        """Number of all ranks."""
        return self.data * self.tiles

    @property
    def steps(self) -> int:
        """Number of steps to time; more if they are short."""
        return min(20, 1 + 600_000 // (self.grid.shape[0] * self.grid.shape[1]))

    def estimate(self, rates: MachineRates) -> MeshEstimate:
        """Return the estimate of `trainer.mesh=auto` with the given rates."""
        build = partial(build_model, UNET_SPEC, UNET_TASK)
        found = estimate_step(build, UNET_TASK, self.grid, self.shape, self.data, 2, rates)
        assert found is not None
        return found

    def __str__(self) -> str:
        return f"{self.grid.shape[0]} × {self.grid.shape[1]} on {list(self.shape)}"


def training(step: nn.Module) -> Callable[[], None]:
    """Return a function that runs one training step without the optimizer."""

    def train() -> None:
        step.zero_grad()
        step().backward()

    return train


def fastest(train: Callable[[], None], steps: int) -> float:
    """Return the seconds of the fastest of `steps` steps, after two warm-up steps."""
    return min([elapsed(train) for _ in range(steps + 2)][2:])


def time_rank(rank: int, case: MeshCase) -> float:
    """Return the seconds of a step on a rank of a group."""
    if case.ranks == 1:
        return fastest(training(TrainingStep(Mesh.single(), case.grid)), case.steps)
    return fastest(training(TrainingStep(arrange_mesh(*case.shape), case.grid).shared()), case.steps)


def time_case(case: MeshCase) -> float:
    """Return the seconds of a step on the slowest rank."""
    return max(run_ranks(case.ranks, time_rank, case, group=case.ranks > 1))


def peak_of_step(case: MeshCase, rank: int = 0) -> int:
    """Return the peak memory in bytes of a step of one rank."""
    with simulated_rank(rank, *case.tile_shape) as mesh:
        step = TrainingStep(mesh, case.grid)
        step().backward()  # allocates the gradients of the parameters
        return peak_allocation(lambda: step().backward())


def plain_step(grid: Grid) -> TrainingStep:
    """Return a step on one process of a U-Net of plain `torch.nn` layers with the shapes of this project's U-Net."""
    peer = TrainingStep(Mesh.single(), grid)
    shapes = [p.shape for p in peer.parameters()]
    peer.module.corrector.model = PlainUNet(UNET_TASK, grid, "sphere")
    assert [p.shape for p in peer.parameters()] == shapes
    return peer


def cases_of(rows: int) -> list[MeshCase]:
    """Return all cases: grids of the sphere at four resolutions, the finest with `rows` rows, on one to four ranks."""
    columns = 2 * (rows - 1)
    grid, half = Grid.regular(rows, columns), Grid.regular(rows // 2 + 1, columns)
    coarse, coarsest = (Grid.regular(rows // n + 1, columns // n) for n in (4, 8))
    two, four = [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)], [(1, 4, 1, 1), (1, 2, 2, 1), (1, 2, 1, 2)]
    return [
        *(MeshCase(each) for each in (grid, half, coarse, coarsest)),
        *(MeshCase(grid, *shape) for shape in two),
        MeshCase(half, 1, 2),
        *(MeshCase(each, *shape) for each in (coarse, coarsest) for shape in two[1:]),
        *(MeshCase(grid, *shape) for shape in [(4, 1, 1, 1), (2, 2, 1, 1), *four, (1, 1, 1, 4)]),
        *(MeshCase(coarsest, *shape) for shape in [*four, (1, 1, 1, 4)]),
    ]


def time_all(cases: Sequence[MeshCase], rounds: int) -> dict[MeshCase, float]:
    """Return the seconds of a step of each case, the shortest of all rounds."""
    measured = dict.fromkeys(cases, math.inf)
    for _ in range(rounds):
        for case in cases:
            measured[case] = min(measured[case], time_case(case))
    return measured


def time_table(measured: Mapping[MeshCase, float], rates: MachineRates | None) -> dict[str, float]:
    """Print the table of measured times and of estimates with `rates`; return the ratios.

    Without `rates`, rates are fitted to the cases of one and two ranks.
    """
    known = [case for case in measured if case.ranks <= 2]
    if rates is None:
        guesses = [case.estimate(MACHINES["cpu"]) for case in known]
        rates = fit_rates(guesses, [measured[case] for case in known])
    print(
        f"{rates.operations:.3g} operations a second, {1e6 * rates.launch:.3g} µs an operator, "
        f"{1e3 * rates.latency:.3g} ms a message, {rates.bandwidth / 1e6:.3g} MB/s"
    )
    wrong: dict[MeshCase, float] = {}
    print("| one thread per rank | measured | estimated | of it sending |\n|---|---|---|---|")
    for case, seconds in measured.items():
        # If there are more ranks than cores, the ranks of a core run in turn.
        found, turns = case.estimate(rates), max(1.0, case.ranks / CORES)
        wrong[case] = abs(turns * found.seconds / seconds - 1)
        times = seconds, turns * found.seconds, turns * (found.seconds - found.compute)
        print(f"| {case} | {' | '.join(f'{1e3 * time:,.0f} ms' for time in times)} |")
    one, weak, *_ = measured
    bands = next(case for case in measured if case.grid is one.grid and case.shape == (1, 2, 1, 1))
    return {
        "strong_efficiency": measured[one] / measured[bands] / 2,
        "weak_efficiency": measured[weak] / measured[bands],
        "estimate_error_fitted": max(wrong[case] for case in known),
        "estimate_error_four": max(error for case, error in wrong.items() if case.ranks == 4),
        "chosen_vs_fastest": worst_choice(measured, rates),
    }


def worst_choice(measured: Mapping[MeshCase, float], rates: MachineRates) -> float:
    """Return how much longer a step takes, at worst, on the mesh with the shortest estimate than on the fastest one.

    Only meshes with the same numbers of ranks and samples are compared.
    """
    worst = 1.0
    for key in {(case.grid.shape, case.data, case.ranks) for case in measured}:
        rivals = [case for case in measured if (case.grid.shape, case.data, case.ranks) == key]
        chosen = min(rivals, key=lambda case: case.estimate(rates).seconds)
        worst = max(worst, measured[chosen] / min(measured[case] for case in rivals))
    return worst


def sent_bytes(rank: int, case: MeshCase) -> BytesByKind:
    """Return the bytes that a rank of a group sends in a step, by kind."""
    step = TrainingStep(arrange_mesh(*case.shape), case.grid)
    return dict(count_traffic(step, step.model).sent)


def count_all(cases: Sequence[MeshCase]) -> dict[str, float]:
    """Count bytes and memory on the finest grid, print the tables; return the ratios."""
    one = cases[0]
    split = [case for case in cases if case.grid is one.grid and case.tiles > 1 and case.data == 1]
    alone = TrainingStep(Mesh.single(), one.grid)
    needed = {case: minimal_traffic(alone, alone.model, one.grid, *case.tile_shape) for case in split}
    sent = {case: run_ranks(case.ranks, sent_bytes, case, group=True) for case in split}
    busiest = {case: max(range(case.ranks), key=lambda rank: sum(sent[case][rank].values())) for case in split}
    print(traffic_table({str(case): sent[case][busiest[case]] for case in split},
                {str(case): needed[case][busiest[case]] for case in split}))  # fmt: skip
    total, worst = peak_of_step(one), 0.0
    print("| mesh | peak per rank | relative to its share of one process |\n|---|---|---|")
    print(f"| {one} | {total / 1e6:.1f} MB | |")
    for case in split:
        part = peak_of_step(case, 1)
        print(f"| {case} | {part / 1e6:.1f} MB | {part * case.ranks / total:.3f} |")
        if case.channels == 1:  # wide layers hold merged tiles
            worst = max(worst, part / (total / case.ranks + max(each["halo"] for each in needed[case])))
    all_of = [sum(sum(each.values()) for case in split for each in of[case]) for of in (sent, needed)]
    return {
        "bytes_vs_minimum": all_of[0] / all_of[1],
        "memory_vs_ideal": worst,
        "one_rank_memory": saved_bytes(alone) / saved_bytes(plain_step(one.grid)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all measurements, print the tables and the ratios."""
    parser = command_line(__doc__, rounds=2, rows=361)
    parser.add_argument("--shipped-rates", action="store_true", help="take the rates of training/step/mesh_choice.py")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--times", action="store_true", help="measure times only")
    part.add_argument("--counts", action="store_true", help="count bytes and memory only")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases, ratios = cases_of(options.rows), {}
    if not options.times:
        ratios |= count_all(cases)
    if not options.counts:
        rates = MACHINES["cpu"] if options.shipped_rates else None
        ratios |= time_table(time_all(cases, options.rounds), rates)
    report("scaling", ratios, options.json)


if __name__ == "__main__":
    main()
