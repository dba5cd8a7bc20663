"""Memory of a training step on 361 x 720 points: computed from the sizes of tensors, compared with measured memory.

Every network of `conf/model/` computes the loss and the gradients of one forecast in a process of its own, in its
shipped size, and so does the U-Net in bfloat16, with checkpointed activations, and with two forecasts. The measured
memory is the rise of the peak memory of the process, which keeps freed memory as in `deepweather train`.

    python -m benchmarks.step_memory [--json] [--models unet transformer]
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import HALF_DEGREE, MEMBER_COUNT, command_line, in_process, report, rise_here
from data_pipeline.common.machine_memory import keep_freed_memory
from data_pipeline.common.named_options import named_options
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.corrector import Corrector, needed_task, reads_moments
from training.memory.step_cost import computed_bytes, measure_step
from training.step.activation_checkpointing import checkpoint_activations
from training.step.correction_module import CorrectionModule

STEP_TASK = Task("steps", ["2t", "msl", "10u", "10v", "tcwv", "skt", "tcc", "z@500"], ["2t"], [48])
"""Eight inputs, as in the experiments of ENS-10."""
MODELS = Path(__file__).parents[1] / "conf" / "model"
VARIANTS = {
    "unet, 2 forecasts": {"forecasts": 2},
    "unet, bfloat16": {"bf16": True},
    "unet, checkpointed": {"again": True},
}


def network_names() -> list[str]:
    """Return the names of the models in `conf/model/` that are trained by gradient descent."""
    names = []
    for path in sorted(MODELS.glob("*.yaml")):
        with torch.device("meta"):
            corrector = shipped_corrector(path.stem)
        if any(parameter.requires_grad for parameter in corrector.parameters()):
            names.append(path.stem)
    return names


def shipped_corrector(name: str, grid: Grid = HALF_DEGREE, **options: Any) -> Corrector:
    """Return a model of `conf/model/` with some other options."""
    spec = named_options("model", name) | options
    task = needed_task(spec, STEP_TASK)
    return Corrector(task, grid, spec, torch.zeros(len(task.static_names), *grid.shape))


def step_bytes(name: str, forecasts: int = 1, bf16: bool = False, again: bool = False) -> tuple[int, int, int, float]:
    """Return computed bytes, bytes of the measured tensors, rise of the process's peak memory, and seconds of a step.

    With `again`, activations are computed again in the backward pass.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    corrector = shipped_corrector(name)
    if again:
        checkpoint_activations(corrector.model)
    module, batch = CorrectionModule(corrector).train(), random_batch(corrector, forecasts)
    autocast = partial(torch.autocast, "cpu", torch.bfloat16) if bf16 else nullcontext
    computed = computed_bytes(module, batch, autocast)
    assert computed is not None
    ctypes.CDLL(None).malloc_trim(0)
    costs = []
    rise = rise_here(lambda: costs.append(measure_step(module, batch, autocast)))
    return computed, costs[0].nbytes, rise, costs[0].seconds


def random_batch(corrector: Corrector, forecasts: int = 1) -> Sample:
    """Return forecasts of random numbers on this rank's tile, two moments or ten members, whichever the model reads."""
    members = 2 if reads_moments(corrector.spec, corrector.task) else MEMBER_COUNT
    C, (H, W) = len(corrector.task.channels), corrector.domain.own_shape
    return Sample(
        280 + torch.randn(forecasts, members, C, H, W), torch.ones(forecasts, C, H, W, dtype=torch.bool),
        corrector.domain.cut(corrector.static).expand(forecasts, -1, -1, -1), 280 + torch.randn(forecasts, 1, H, W),
        10**9 + 86400 * torch.arange(forecasts), torch.full((forecasts,), 48),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print computed and measured memory of one step of every network."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--models", nargs="+", help="names of conf/model; by default all networks, and variants of the U-Net"
    )
    options = parser.parse_args(arguments)
    works = {name: (name, {}) for name in options.models or network_names()}
    if not options.models:
        works |= {label: ("unet", choice) for label, choice in VARIANTS.items()}
    ratios = {}
    print(f"{'model':<24} {'computed':>9} {'tensors':>9} {'process':>9} {'seconds':>8}")
    for label, (name, choice) in works.items():
        computed, tensors, rise, seconds = in_process(partial(step_bytes, name, **choice))
        print(
            f"{label:<24} {computed / 1e9:6.2f} GB {tensors / 1e9:6.2f} GB {rise / 1e9:6.2f} GB {seconds:8.1f}",
            flush=True,
        )
        ratios[label.replace(", ", "_").replace(" ", "_")] = rise / computed
    report("step_memory", ratios, options.json)


if __name__ == "__main__":
    main()
