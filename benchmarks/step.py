"""A training step on 361 x 720 points, compared with the same network of plain `torch.nn`; one thread.

Every network computes the loss and the gradients of one forecast, with the layers and the loss of `deepweather train`.
Its peers have the same shapes and parameters, the same inputs and head:

- `NAME_vs_plain`: circular padding in longitude, the last row repeated at the poles;
- `NAME_vs_zero`: zeros outside, which is wrong at the date line and at the poles, and copies nothing.

The steps run in turn. Their CPU time is compared, because other programs change the time on the clock; the median of
all rounds counts. `--clock` compares the time on the clock. Freed memory is kept, as in `deepweather train`.

The transformer over 10 members has another peer, which lacks the layers of decision 014 and the kept memory of decision
011. The transformer and this peer run in separate processes:

- `transformer_vs_before`: the former operators, which give their memory back between them, as before decision 011;
- `transformer_vs_operators`: the former operators in memory that is kept;
- `transformer_memory`: the rise of the peak memory of the process, compared with the former one.

    python -m benchmarks.step [--json] [--rounds 7] [--rows 361] [--clock]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import nn

from benchmarks.common import command_line, elapsed, in_process, report, rise_here
from benchmarks.mesh.plain_ens10 import PlainENS10UNet
from benchmarks.mesh.plain_transformer import PlainTransformer
from benchmarks.mesh.plain_unet import Padding, PlainUNet
from benchmarks.mesh.training_step import UNET_TASK, TrainingStep
from benchmarks.step_memory import random_batch, shipped_corrector
from data_pipeline.common.machine_memory import keep_freed_memory
from data_pipeline.grid import Grid
from models.networks.unet import UNet
from models.parallel.mesh import Mesh
from models.published.ens10 import ENS10UNet
from training.memory.step_cost import forward_and_backward
from training.step.correction_module import CorrectionModule

PEERS: dict[str, Padding] = {"plain": "sphere", "zero": "zeros"}
"""Padding of the networks of plain `torch.nn`."""
OURS: dict[str, Callable[[Grid], nn.Module]] = {
    "unet": lambda grid: UNet(UNET_TASK, grid),
    "ens10_unet": lambda grid: ENS10UNet(UNET_TASK, grid),
}
PLAIN: dict[str, Callable[[Grid, Padding], nn.Module]] = {
    "unet": lambda grid, padding: PlainUNet(UNET_TASK, grid, padding),
    "ens10_unet": lambda grid, padding: PlainENS10UNet(UNET_TASK, padding),
}


def step_of(network: nn.Module, grid: Grid) -> Callable[[], None]:
    """Return a function that computes the loss of one forecast and its gradients."""
    step = TrainingStep(Mesh.single(), grid)
    step.module.corrector.model = network

    def train() -> None:
        step.zero_grad()
        step().backward()

    return train


def median_seconds(
    works: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """Return the median seconds of each function; every round calls all of them in turn, after a warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            seconds[name].append(elapsed(work, clock))
    return {name: statistics.median(each[1:]) for name, each in seconds.items()}


def compare(name: str, grid: Grid, rounds: int, clock: Callable[[], float] = time.thread_time) -> dict[str, float]:
    """Return the seconds of a step of a network, `ours`, and of its peers."""
    torch.manual_seed(0)
    networks = {"ours": OURS[name](grid)} | {peer: PLAIN[name](grid, padding) for peer, padding in PEERS.items()}
    shapes = {label: sorted(tuple(p.shape) for p in network.parameters()) for label, network in networks.items()}
    assert all(each == shapes["ours"] for each in shapes.values()), "the peers have other parameters"
    return median_seconds({label: step_of(network, grid) for label, network in networks.items()}, rounds, clock)


def transformer_step(rows: int, rounds: int, former: bool, kept: bool, clock: Callable[[], float]) -> tuple[float, int]:
    """Return the median seconds of a step of the transformer or of its `former` operators, and the rise of memory.

    Freed memory is `kept` for the next arrays, or not. Call it in a process of its own.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if kept:
        keep_freed_memory()
    corrector = shipped_corrector("transformer", Grid.regular(rows, 2 * (rows - 1)), baseline=None)
    if former:
        plain = PlainTransformer(corrector.task, corrector.grid)
        plain.load_state_dict(corrector.model.state_dict())
        corrector.model = plain
    module, batch = CorrectionModule(corrector).train(), random_batch(corrector)
    works, seconds = {"step": lambda: forward_and_backward(module, batch, nullcontext)}, dict[str, float]()
    rise = rise_here(lambda: seconds.update(median_seconds(works, rounds, clock)))
    return seconds["step"], rise


def compare_transformer(rows: int, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the ratios of time and memory of the transformer to those of its former operators."""
    cases = {"ours": (False, True), "before": (True, False), "operators": (True, True)}
    found = {case: in_process(transformer_step, rows, rounds, *how, clock) for case, how in cases.items()}
    for case, (seconds, rise) in found.items():
        print(f"{'transformer':<12} {case:<10} {seconds:6.2f} s {rise / 1e9:6.2f} GB", flush=True)
    seconds, rise = found["ours"]
    ratios = {f"transformer_vs_{case}": seconds / found[case][0] for case in ("before", "operators")}
    return ratios | {"transformer_memory": rise / found["before"][1]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the steps and print the ratios."""
    parser = command_line(__doc__, rounds=7, rows=361)
    parser.add_argument("--clock", action="store_true", help="compare the time on the clock")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    keep_freed_memory()
    grid, ratios = Grid.regular(options.rows, 2 * (options.rows - 1)), {}
    for name in OURS:
        seconds = compare(name, grid, options.rounds, time.perf_counter if options.clock else time.thread_time)
        print(f"{name:<12} " + ", ".join(f"{peer} {1e3 * each:.0f} ms" for peer, each in seconds.items()), flush=True)
        ratios |= {f"{name}_vs_{peer}": seconds["ours"] / seconds[peer] for peer in PEERS}
    ratios |= compare_transformer(
        options.rows, min(options.rounds, 3), time.perf_counter if options.clock else time.thread_time
    )
    report("step", ratios, options.json)


if __name__ == "__main__":
    main()
