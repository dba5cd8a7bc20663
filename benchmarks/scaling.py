"""A training step of the U-Net on several ranks: bytes sent, memory, time.

The shipped U-Net at 361 x 720, one sample, with the loss and the averaged gradients of `deepweather train`:

- bytes at the collective calls divided by the minimum, which is computed from the derivatives of each layer;
- peak memory of a rank divided by its share of the memory of one process plus its halo;
- time and memory of a step on one rank, relative to a U-Net of plain `torch.nn`; timed in turn, medians of 20;
- strong and weak efficiency of two processes of one thread each, with gloo on this machine;
- relative error of predicted steps on four ranks, from a model of latency and bandwidth fitted to two ranks.

    python -m benchmarks.scaling [--json] [--rounds 2] [--rows 361]
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from benchmarks.common import command_line, elapsed, report
from benchmarks.mesh.network_model import MeasuredStep, NetworkModel
from benchmarks.mesh.plain_unet import Padding, PlainUNet
from benchmarks.mesh.ranks import CORES, run_ranks
from benchmarks.mesh.traffic import BytesByKind, count_traffic, minimal_traffic, traffic_table
from benchmarks.mesh.training_step import UNET_TASK, TrainingStep, peak_allocation, saved_bytes, simulated_rank
from data_pipeline.grid import Grid
from models.parallel.mesh import Mesh, arrange_mesh


@dataclass(frozen=True)
class MeshCase:
    """A grid divided into bands and sectors."""

    grid: Grid
    bands: int = 1
    sectors: int = 1

    @property
    def ranks(self) -> int:
        """Number of ranks that share the grid."""
        return self.bands * self.sectors

    @property
    def steps(self) -> int:
        """Number of steps to time; more if they are short."""
        return min(20, 1 + 600_000 // (self.grid.shape[0] * self.grid.shape[1]))

    def __str__(self) -> str:
        return f"{self.grid.shape[0]} × {self.grid.shape[1]} on {self.bands} × {self.sectors}"


@dataclass
class CaseResults:
    """Measurements of one case; the shortest times of several rounds count."""

    seconds: float = float("inf")
    tiles: list[float] = field(default_factory=list)
    """Seconds of each rank's tile without waiting."""
    sent: list[BytesByKind] = field(default_factory=list)
    """Bytes that each rank sends."""
    messages: list[int] = field(default_factory=list)

    def measure(self, case: MeshCase) -> None:
        """Measure another round."""
        found = run_ranks(case.ranks, time_rank, case, group=case.ranks > 1)
        self.seconds = min(self.seconds, max(seconds for seconds, _, _ in found))
        self.sent, self.messages = [each for _, each, _ in found], [each for _, _, each in found]
        if case.ranks > 1:
            alone = tiles_alone(case)
            self.tiles = [min(pair) for pair in zip(self.tiles or alone, alone, strict=True)]

    @property
    def busiest(self) -> int:
        """The rank that sends the most bytes."""
        return max(range(len(self.sent)), key=lambda rank: sum(self.sent[rank].values()))

    @property
    def step(self) -> MeasuredStep:
        """The measurements of the busiest rank, for `NetworkModel`."""
        sent = sum(self.sent[self.busiest].values())
        return MeasuredStep(self.seconds, tuple(self.tiles), self.messages[self.busiest], sent)


def training(step: nn.Module) -> Callable[[], None]:
    """Return a function that runs one training step without the optimizer."""

    def train() -> None:
        step.zero_grad()
        step().backward()

    return train


def fastest(train: Callable[[], None], steps: int) -> float:
    """Return the seconds of the fastest of `steps` steps, after two warm-up steps."""
    return min([elapsed(train) for _ in range(steps + 2)][2:])


def time_rank(rank: int, case: MeshCase) -> tuple[float, BytesByKind, int]:
    """Return the seconds of a step on a rank of a group, the bytes that it sends by kind, and its messages."""
    if case.ranks == 1:
        return fastest(training(TrainingStep(Mesh.single(), case.grid)), case.steps), {}, 0
    step = TrainingStep(arrange_mesh(1, case.bands, case.sectors), case.grid)
    seconds = fastest(training(step.shared()), case.steps)
    counter = count_traffic(step, step.model)
    return seconds, dict(counter.sent), counter.messages


def time_simulated_rank(number: int, case: MeshCase, ranks: Sequence[int]) -> float:
    """Return the seconds of a step of one of `ranks` that never waits."""
    with simulated_rank(ranks[number], case.bands, case.sectors) as mesh:
        return fastest(training(TrainingStep(mesh, case.grid)), case.steps)


def tiles_alone(case: MeshCase) -> list[float]:
    """Return the seconds of each rank's tile, measured on as many ranks at a time as there are cores."""
    parts = [range(case.ranks)[first : first + CORES] for first in range(0, case.ranks, CORES)]
    return [seconds for part in parts for seconds in run_ranks(len(part), time_simulated_rank, case, list(part))]


def peak_of_step(case: MeshCase, rank: int = 0) -> int:
    """Return the peak memory in bytes of a step of one rank."""
    with simulated_rank(rank, case.bands, case.sectors) as mesh:
        step = TrainingStep(mesh, case.grid)
        step().backward()  # allocates the gradients of the parameters
        return peak_allocation(lambda: step().backward())


def comparable_steps(grid: Grid) -> dict[str, TrainingStep]:
    """Return steps on one process of this project's U-Net and of plain ones of the same shapes."""
    steps = {"ours": TrainingStep(Mesh.single(), grid)}
    kinds: dict[str, Padding] = {"plain": "sphere", "plain, zeros outside": "zeros"}
    for name, kind in kinds.items():
        steps[name] = peer = TrainingStep(Mesh.single(), grid)
        peer.module.corrector.model = PlainUNet(UNET_TASK, grid, kind)
        assert [p.shape for p in peer.parameters()] == [p.shape for p in steps["ours"].parameters()]
    return steps


def median_times(steps: dict[str, TrainingStep], rounds: int = 20) -> dict[str, float]:
    """Return the median seconds of `steps`; every round runs all of them in turn, after two warm-up rounds."""
    trains = {name: training(step) for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 2):
        for name, train in trains.items():
            seconds[name].append(elapsed(train))
    return {name: statistics.median(each[2:]) for name, each in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all measurements, print the tables and the ratios."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="repetitions of every measurement")
    parser.add_argument("--rows", type=int, default=361, help="latitudes of the grid")
    options = parser.parse_args(arguments)
    rows, columns = options.rows, 2 * (options.rows - 1)
    grid, half, coarse = (Grid.regular(*shape) for shape in (
        (rows, columns), (rows // 2 + 1, columns), (rows // 4 + 1, columns // 4)))  # fmt: skip
    steps = comparable_steps(grid)
    alone, kept, turns = steps["ours"], {name: saved_bytes(step) for name, step in steps.items()}, median_times(steps)
    for name, seconds in turns.items():
        print(f"{name:<20} {1e3 * seconds:8.1f} ms a step, keeps {kept[name] / 1e6:.1f} MB for the backward pass")

    one, weak = MeshCase(grid), MeshCase(half)
    two = [
        MeshCase(grid, 2, 1), MeshCase(grid, 1, 2), MeshCase(half, 2, 1),
        MeshCase(coarse, 2, 1), MeshCase(coarse, 1, 2),
    ]  # fmt: skip
    four = [MeshCase(grid, 4, 1), MeshCase(grid, 2, 2)]
    measured = {case: CaseResults() for case in (one, weak, *two, *four)}
    for _ in range(options.rounds):
        for case, found in measured.items():
            found.measure(case)
    network = NetworkModel.fit([measured[case].step for case in two], CORES)
    print(f"fitted to two ranks: {1e3 * network.latency:.2f} ms per message, {1e9 * network.per_byte:.2f} ns per byte")
    print("| one thread per rank | measured | tile alone | predicted |\n|---|---|---|---|")
    for case, found in measured.items():
        times = [found.seconds, *([max(found.tiles), network.predict(found.step)] if found.tiles else [])]
        print(f"| {case} | {' | '.join([*(f'{1e3 * seconds:,.0f} ms' for seconds in times), '', ''][:3])} |")

    split = [case for case in (*two, *four) if case.grid is grid]
    needed = {case: minimal_traffic(alone, alone.model, grid, case.bands, case.sectors) for case in split}
    print(traffic_table({str(case): measured[case].sent[measured[case].busiest] for case in split},
                {str(case): needed[case][measured[case].busiest] for case in split}))  # fmt: skip
    sent, minimum = (
        sum(sum(each.values()) for case in split for each in of(case))
        for of in (lambda case: measured[case].sent, needed.__getitem__)
    )

    total, worst = peak_of_step(one), 0.0
    print("| mesh | peak per rank | relative to its share of one process |\n|---|---|---|")
    print(f"| {one} | {total / 1e6:.1f} MB | |")
    for case in split:
        part, halo = peak_of_step(case, 1), max(each["halo"] for each in needed[case])
        worst = max(worst, part / (total / case.ranks + halo))
        print(f"| {case} | {part / 1e6:.1f} MB | {part * case.ranks / total:.3f} |")

    ratios = {
        "bytes_vs_minimum": sent / minimum,
        "memory_vs_ideal": worst,
        "one_rank_overhead": turns["ours"] / turns["plain"],
        "one_rank_memory": kept["ours"] / kept["plain"],
        "strong_efficiency": measured[one].seconds / measured[two[0]].seconds / 2,
        "weak_efficiency": measured[weak].seconds / measured[two[0]].seconds,
        "prediction_error": max(abs(network.predict(measured[c].step) / measured[c].seconds - 1) for c in four),
    }
    report("scaling", ratios, options.json)


if __name__ == "__main__":
    main()
