"""A training step compiled by `torch.compile`, compared with the same step uncompiled, on 361 x 720 and one thread.

Every network computes the loss and the gradients of one forecast in its shipped size, in a process of its own. Freed
memory is kept. Both steps run in turn; the median of their CPU times counts. The first compiled step includes the
compiler, whose seconds are printed. A network that does not compile is named with its error, and has no ratio.

    python -m benchmarks.compiled_step [--json] [--models unet mlp] [--rounds 3] [--rows 361]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch

from benchmarks.common import command_line, elapsed, in_process, report
from benchmarks.step import median_seconds
from benchmarks.step_memory import random_batch, shipped_corrector
from data_pipeline.common.machine_memory import keep_freed_memory
from data_pipeline.grid import Grid
from training.memory.step_cost import forward_and_backward
from training.step.correction_module import CorrectionModule


def compiled_seconds(name: str, rows: int, rounds: int) -> dict[str, float] | str:
    """Return the seconds of the first compiled step and of later steps, or the error of the compiler."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()
    plain, compiled = step_of_model(name, rows, compiles=False), step_of_model(name, rows, compiles=True)
    try:
        first = elapsed(compiled)
    except Exception as error:  # the compiler raises errors of many classes
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    works = {"plain": plain, "compiled": compiled}
    return {"first": first} | median_seconds(works, rounds, time.thread_time)


def step_of_model(name: str, rows: int, compiles: bool) -> Callable[[], None]:
    """Return a function that computes the loss and the gradients of a shipped model."""
    corrector = shipped_corrector(name, Grid.regular(rows, 2 * (rows - 1)))
    if compiles:
        corrector.model.compile()
    module, batch = CorrectionModule(corrector).train(), random_batch(corrector)
    return lambda: forward_and_backward(module, batch, nullcontext)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the times of every network, and the ratio of the compiled to the uncompiled step."""
    parser = command_line(__doc__, rounds=3, rows=361)
    parser.add_argument("--models", nargs="+", default=["mlp", "unet"], help="names of conf/model")
    options = parser.parse_args(arguments)
    ratios = {}
    for name in options.models:
        found = in_process(compiled_seconds, name, options.rows, options.rounds)
        if isinstance(found, str):
            print(f"{name:<24} not compiled: {found}", flush=True)
            continue
        print(
            f"{name:<24} {found['plain']:6.2f} s, compiled {found['compiled']:6.2f} s, first {found['first']:6.1f} s",
            flush=True,
        )
        ratios[name] = found["compiled"] / found["plain"]
    report("compiled_step", ratios, options.json)


if __name__ == "__main__":
    main()
