"""A training step of the U-Net on several ranks: what it sends, what it takes, how fast it is.

The shipped U-Net at 361 x 720, one sample, with the loss and the average of gradients of `deepweather train`:

- bytes at the collective calls over the least that they can be, worked out from the derivatives of each layer;
- peak memory of a rank over its part of one process plus its halo;
- time and memory of a step on one rank over one of a U-Net of plain `torch.nn`, in turns, medians of 20;
- strong and weak efficiency of two processes of one thread each, by gloo on this machine;
- how far steps of four processes are from what a model of latency and bandwidth says that was fitted to two.

    python -m benchmarks.scaling [--json] [--rounds 2] [--rows 361]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from benchmarks.common import command_line, report
from benchmarks.mesh.memory import peak, saved
from benchmarks.mesh.network import Network, Run
from benchmarks.mesh.plain_unet import Padding, PlainUNet
from benchmarks.mesh.ranks import CORES, side_by_side
from benchmarks.mesh.traffic import Bytes, counted, least, table
from benchmarks.mesh.training_step import TASK, Step, playing
from data_pipeline.grid import Grid
from models.parallel.mesh import Mesh, arranged


@dataclass(frozen=True)
class Case:
    """A grid in bands and sectors."""

    grid: Grid
    bands: int = 1
    sectors: int = 1

    @property
    def ranks(self) -> int:
        """How many ranks share the grid."""
        return self.bands * self.sectors

    @property
    def steps(self) -> int:
        """How many steps to time: many of the short ones."""
        return min(20, 1 + 600_000 // (self.grid.shape[0] * self.grid.shape[1]))

    def __str__(self) -> str:
        return f"{self.grid.shape[0]} × {self.grid.shape[1]} on {self.bands} × {self.sectors}"


@dataclass
class Measured:
    """What was found of one case; the best of several rounds counts."""

    seconds: float = float("inf")
    tiles: list[float] = field(default_factory=list)
    """Seconds of each rank's tile with nobody to wait for."""
    sent: list[Bytes] = field(default_factory=list)
    """By rank."""
    messages: list[int] = field(default_factory=list)

    def measure(self, case: Case) -> None:
        """Measure once more."""
        found = side_by_side(case.ranks, real, case, group=case.ranks > 1)
        self.seconds = min(self.seconds, max(seconds for seconds, _, _ in found))
        self.sent, self.messages = [each for _, each, _ in found], [each for _, _, each in found]
        if case.ranks > 1:
            alone = tiles_alone(case)
            self.tiles = [min(pair) for pair in zip(self.tiles or alone, alone, strict=True)]

    @property
    def busiest(self) -> int:
        """The rank that sends most."""
        return max(range(len(self.sent)), key=lambda rank: sum(self.sent[rank].values()))

    @property
    def run(self) -> Run:
        """What the model of the network asks."""
        return Run(self.seconds, tuple(self.tiles), self.messages[self.busiest], sum(self.sent[self.busiest].values()))


def training(step: nn.Module) -> Callable[[], None]:
    """Return one step of training, up to where the optimizer would come."""

    def train() -> None:
        step.zero_grad()
        step().backward()

    return train


def timed(train: Callable[[], None], steps: int) -> float:
    """Return the seconds of the fastest of `steps` steps, after two that do not count."""
    seconds = []
    for _ in range(steps + 2):
        began = time.perf_counter()
        train()
        seconds.append(time.perf_counter() - began)
    return min(seconds[2:])


def real(rank: int, case: Case) -> tuple[float, Bytes, int]:
    """Return the seconds of a step as a rank of a group, what it sends by kind, and in how many messages."""
    if case.ranks == 1:
        return timed(training(Step(Mesh.alone(), case.grid)), case.steps), {}, 0
    step = Step(arranged(1, case.bands, case.sectors), case.grid)
    seconds = timed(training(step.shared()), case.steps)
    observer = counted(step, step.model)
    return seconds, dict(observer.sent), observer.messages


def played(number: int, case: Case, ranks: Sequence[int]) -> float:
    """Return the seconds of a step of one of `ranks` that nobody keeps waiting."""
    with playing(ranks[number], case.bands, case.sectors) as mesh:
        return timed(training(Step(mesh, case.grid)), case.steps)


def tiles_alone(case: Case) -> list[float]:
    """Return the seconds of each rank's tile, as many at a time as there are cores."""
    parts = [range(case.ranks)[first : first + CORES] for first in range(0, case.ranks, CORES)]
    return [seconds for part in parts for seconds in side_by_side(len(part), played, case, list(part))]


def memory(case: Case, rank: int = 0) -> int:
    """Return the most bytes at any time of a step of one rank."""
    with playing(rank, case.bands, case.sectors) as mesh:
        step = Step(mesh, case.grid)
        step().backward()  # gradients of parameters are there from now on
        return peak(lambda: step().backward())


def peers(grid: Grid) -> dict[str, Step]:
    """Return steps on one process of our U-Net and of plain ones of the same shapes."""
    steps = {"ours": Step(Mesh.alone(), grid)}
    kinds: dict[str, Padding] = {"plain": "sphere", "plain, zeros outside": "zeros"}
    for name, kind in kinds.items():
        steps[name] = peer = Step(Mesh.alone(), grid)
        peer.module.corrector.model = PlainUNet(TASK, grid, kind)
        assert [p.shape for p in peer.parameters()] == [p.shape for p in steps["ours"].parameters()]
    return steps


def in_turns(steps: dict[str, Step], turns: int = 20) -> dict[str, float]:
    """Return the median seconds of `steps`, taken in turns, after two turns that do not count."""
    trains = {name: training(step) for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(turns + 2):
        for name, train in trains.items():
            began = time.perf_counter()
            train()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(each[2:]) for name, each in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything, print the figures and the ratios."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="turns of every measurement, of which the best counts")
    parser.add_argument("--rows", type=int, default=361, help="latitudes of the grid")
    options = parser.parse_args(arguments)
    rows, columns = options.rows, 2 * (options.rows - 1)
    grid, half, coarse = (Grid.regular(*shape) for shape in (
        (rows, columns), (rows // 2 + 1, columns), (rows // 4 + 1, columns // 4)))  # fmt: skip
    steps = peers(grid)
    alone, kept, turns = steps["ours"], {name: saved(step) for name, step in steps.items()}, in_turns(steps)
    for name, seconds in turns.items():
        print(f"{name:<20} {1e3 * seconds:8.1f} ms a step, keeps {kept[name] / 1e6:.1f} MB for the backward pass")

    one, weak = Case(grid), Case(half)
    two = [Case(grid, 2, 1), Case(grid, 1, 2), Case(half, 2, 1), Case(coarse, 2, 1), Case(coarse, 1, 2)]
    four = [Case(grid, 4, 1), Case(grid, 2, 2)]
    measured = {case: Measured() for case in (one, weak, *two, *four)}
    for _ in range(options.rounds):
        for case, found in measured.items():
            found.measure(case)
    network = Network.fitted([measured[case].run for case in two], CORES)
    print(f"fitted to two ranks: {1e3 * network.latency:.2f} ms a message, {1e9 * network.per_byte:.2f} ns a byte")
    print("| one thread a rank | measured | tile alone | predicted |\n|---|---|---|---|")
    for case, found in measured.items():
        times = [found.seconds, *([max(found.tiles), network.predict(found.run)] if found.tiles else [])]
        print(f"| {case} | {' | '.join([*(f'{1e3 * seconds:,.0f} ms' for seconds in times), '', ''][:3])} |")

    split = [case for case in (*two, *four) if case.grid is grid]
    needed = {case: least(alone, alone.model, grid, case.bands, case.sectors) for case in split}
    print(table({str(case): measured[case].sent[measured[case].busiest] for case in split},
                {str(case): needed[case][measured[case].busiest] for case in split}))  # fmt: skip
    sent, must = (
        sum(sum(each.values()) for case in split for each in of(case))
        for of in (lambda case: measured[case].sent, needed.__getitem__)
    )

    whole, worst = memory(one), 0.0
    print(f"| mesh | peak per rank | over its part of one process |\n|---|---|---|\n| {one} | {whole / 1e6:.1f} MB | |")
    for case in split:
        part, halo = memory(case, 1), max(each["halo"] for each in needed[case])
        worst = max(worst, part / (whole / case.ranks + halo))
        print(f"| {case} | {part / 1e6:.1f} MB | {part * case.ranks / whole:.3f} |")

    ratios = {
        "bytes_vs_minimum": sent / must,
        "memory_vs_ideal": worst,
        "one_rank_overhead": turns["ours"] / turns["plain"],
        "one_rank_memory": kept["ours"] / kept["plain"],
        "strong_efficiency": measured[one].seconds / measured[two[0]].seconds / 2,
        "weak_efficiency": measured[weak].seconds / measured[two[0]].seconds,
        "prediction_error": max(abs(network.predict(measured[c].run) / measured[c].seconds - 1) for c in four),
    }
    report("scaling", ratios, options.json)


if __name__ == "__main__":
    main()
