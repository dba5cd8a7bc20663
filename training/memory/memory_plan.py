"""The memory plan of a run: whether a training step fits the memory, and into what micro-batches its batch is divided.

The plan is kept in the run folder, so that a resumed run computes the same micro-batches, and so the same numbers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from data_pipeline.common.checks import size_in_bytes
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import write_text
from data_pipeline.common.machine_memory import free_memory, process_memory
from data_pipeline.common.messages import format_duration, format_size, say
from data_pipeline.common.progress import Progress
from data_pipeline.sample import Sample
from models.parallel.mesh import Mesh
from training.memory.layer_coupling import find_coupled_layer
from training.memory.step_cost import Autocast, computed_bytes, measure_step
from training.run.run_folder import MEMORY_PLAN
from training.run.trainer_options import TrainerOptions
from training.step.correction_module import CorrectionModule
from training.step.training_data import TrainingData

SLACK, SCATTERED, MOST_SCATTERED = 1.1, 0.7, 1_200_000_000
"""A process needs up to `SLACK` times the bytes of a step's tensors. It also needs the smaller one of `SCATTERED` times
these bytes and `MOST_SCATTERED` bytes: inside operators, and where freed memory lies too scattered to be used again.
Measured by `benchmarks/step_memory.py` on 361 x 720 points."""
HARMLESS = 1000
"""Upper bound on the memory of a pass, as a multiple of its forecast's bytes. If a pass of this size fits, the exact
size is not computed before the pass is measured."""
OPTIMIZER_COPIES = 2
"""Copies of all weights that an optimizer keeps: the two moments of Adam."""
BATCHES = 4
"""Batches in memory at the same time: the batch of the step, and batches that are read ahead for training and
validation."""
FORMAT = 1


@dataclass(frozen=True)
class MemoryPlan:
    """Cost of a forward and backward pass on one forecast, and how many forecasts a run computes at a time.

    On a mesh, the cost is the largest of all ranks. `measured` holds the options that the cost depends on.
    """

    measured: dict[str, Any]
    pass_bytes: int
    """Peak bytes of the tensors of the pass."""
    seconds: float
    """Duration of the pass."""
    weight_bytes: int
    """Bytes of the trained weights."""
    copies: int
    """Copies of the weights that exist beside the weights and their gradients."""
    sample_bytes: int
    """Bytes of a forecast in a batch."""
    share: int
    """Forecasts of a rank in a batch."""
    micro_batch: int
    """Forecasts that a rank computes at a time."""

    @property
    def step_bytes(self) -> int:
        """The memory that a step takes."""
        tensors = self.weight_bytes + self.micro_batch * self.pass_bytes
        unusable = min(SCATTERED * tensors, MOST_SCATTERED)
        others = self.copies * self.weight_bytes + BATCHES * self.share * self.sample_bytes
        return round(SLACK * tensors + unusable + others)

    def fitting(self, room: int) -> MemoryPlan:
        """Return the plan with the largest micro-batches whose step fits `room` bytes, or with one forecast in each."""
        plan = replace(self, micro_batch=self.share)
        while plan.step_bytes > room and plan.micro_batch > 1:
            plan = replace(plan, micro_batch=plan.micro_batch - 1)
        # As even as possible: 3, 3 and 2 of 8 forecasts where 3 fit, and 4 and 4 where 7 fit.
        parts = -(-self.share // plan.micro_batch)
        return replace(plan, micro_batch=-(-self.share // parts))


def plan_memory(
    trained: CorrectionModule, data: TrainingData, autocast: Autocast, device: torch.device, run_dir: Path
) -> int | None:
    """Return how many forecasts of a batch a rank computes at a time, None for all; print memory and time of a step.

    One forecast is measured. Raises `InputError` if it does not fit the memory, or if a batch does not fit and a layer
    of the model forbids micro-batches. All ranks call this and get the same number. A run that resumes on the same mesh
    keeps its micro-batches unless they no longer fit.
    """
    options, mesh, file = trained.options, trained.mesh, run_dir / MEMORY_PLAN
    room = min(_of_all(mesh, _room(options, mesh, data, device)))
    measured = {
        "format": FORMAT, "mesh": list(options.mesh), "device": device.type, "batch_size": options.batch_size,
        "activation_checkpointing": options.activation_checkpointing,
    }  # fmt: skip
    plan = mesh.broadcast(_read(file, measured) if mesh.first else None)
    if plan is None or plan.step_bytes > room:
        with Progress("memory of a training step"):
            plan = _new_plan(trained, data, autocast, device, room, measured)
        text = json.dumps(asdict(plan))
        mesh.run_on_first(lambda: write_text(file, text))
    say(_describe(plan, options, room, len(data.train_batches)))
    return None if plan.micro_batch == plan.share else plan.micro_batch


def _new_plan(
    trained: CorrectionModule,
    data: TrainingData,
    autocast: Autocast,
    device: torch.device,
    room: int,
    measured: dict[str, Any],
) -> MemoryPlan:
    options, mesh, first = trained.options, trained.mesh, data.train[0]
    sample_bytes = sum(tensor.nbytes for tensor in first)
    share = min(-(-options.batch_size // mesh.data), len(data.train))
    plan = MemoryPlan(
        measured=measured, pass_bytes=HARMLESS * sample_bytes, seconds=0.0,
        weight_bytes=sum(weight.nbytes for weight in trained.parameters() if weight.requires_grad),
        copies=OPTIMIZER_COPIES + bool(options.ema_decay) + (mesh.ranks > 1), sample_bytes=sample_bytes,
        share=share, micro_batch=1,
    )  # fmt: skip
    batch = default_collate([first])
    if max(_of_all(mesh, plan.step_bytes)) > room:
        # Computed from tensor sizes first: a real pass could exceed the memory.
        computed = [each for each in _of_all(mesh, computed_bytes(trained, batch, autocast)) if each is not None]
        if computed:
            _check_one_forecast(replace(plan, pass_bytes=max(computed)), options, room)
    trained.to(device)
    cost = measure_step(trained, _to(device, batch), autocast)
    costs = _of_all(mesh, cost)
    plan = replace(plan, pass_bytes=max(each.nbytes for each in costs), seconds=max(each.seconds for each in costs))
    _check_one_forecast(plan, options, room)
    plan = plan.fitting(room)
    if plan.micro_batch < share:
        second = data.train[min(1, len(data.train) - 1)]
        layer = find_coupled_layer(trained, _to(device, first), _to(device, second))
        if layer := next(filter(None, _of_all(mesh, layer)), ""):
            whole = replace(plan, micro_batch=share)
            raise InputError(
                f"a step on {options.batch_size} forecasts needs {format_size(whole.step_bytes)} of memory on each "
                f"rank, {_limit(options, room)}, and its batch cannot be divided, because the layer {layer} mixes the "
                f"forecasts of a batch; set trainer.batch_size={plan.micro_batch * mesh.data}, or {_remedies(options)}"
            )
    return plan


def _check_one_forecast(plan: MemoryPlan, options: TrainerOptions, room: int) -> None:
    """Raise an `InputError` if a step on one forecast at a time does not fit."""
    if plan.step_bytes > room:
        raise InputError(
            f"a training step needs {format_size(plan.step_bytes)} of memory even with one forecast at a time, "
            f"{_limit(options, room)}; {_remedies(options)}"
        )


def _limit(options: TrainerOptions, room: int) -> str:
    left = format_size(max(room, 0))
    if options.memory is None:
        return f"and {left} are free, without the caches of data.cache"
    return f"and trainer.memory={options.memory} leaves {left}, without the process and the caches of data.cache"


def _remedies(options: TrainerOptions) -> str:
    found = "set trainer.memory to allow more, "
    if not options.activation_checkpointing:
        found += "set trainer.activation_checkpointing=true, "
    return found + "lower data.cache.memory_bytes, split the globe by trainer.mesh, or make the model smaller"


def _describe(plan: MemoryPlan, options: TrainerOptions, room: int, steps: int) -> str:
    """Return a line on memory and time of a step."""
    rank = " on each rank" if plan.copies > OPTIMIZER_COPIES + bool(options.ema_decay) else ""
    seconds = plan.seconds * plan.share
    text = (
        f"a step on {plan.share} forecasts{rank} takes about {format_size(plan.step_bytes)} of memory and "
        f"{seconds:.2g} s, an epoch of {steps} steps {format_duration(seconds * steps)}"
    )
    if plan.micro_batch == plan.share:
        return text
    whole = format_size(replace(plan, micro_batch=plan.share).step_bytes)
    return (
        f"{text}; at most {plan.micro_batch} forecasts are computed at a time, because all together need {whole}, "
        f"{_limit(options, room)}"
    )


def _room(options: TrainerOptions, mesh: Mesh, data: TrainingData, device: torch.device) -> int:
    """Return the bytes that steps of this rank may take, without the bytes that its caches will still fill."""
    limit = None if options.memory is None else size_in_bytes("trainer.memory", options.memory)
    if device.type == "cuda":
        allocated = torch.cuda.memory_allocated(device)
        unused = torch.cuda.memory_reserved(device) - allocated
        return torch.cuda.mem_get_info(device)[0] + unused if limit is None else limit - allocated
    room = free_memory() // mesh.local_ranks if limit is None else limit - process_memory()
    return room - sum(batches.bytes_to_come for batches in (data.train_batches, data.val_batches) if batches)


def _of_all(mesh: Mesh, value: Any) -> list[Any]:
    """Return the values of all ranks; all ranks call this."""
    found: list[Any] = mesh.broadcast(mesh.gather(value))
    return found


def _to(device: torch.device, sample: Sample) -> Sample:
    return Sample(*(tensor.to(device) for tensor in sample))


def _read(file: Path, measured: dict[str, Any]) -> MemoryPlan | None:
    """Return the plan of an earlier start of the same run on the same mesh."""
    try:
        held = json.loads(file.read_text())
        return MemoryPlan(**held) if held["measured"] == measured else None
    except (OSError, ValueError, TypeError, KeyError):  # no file, or a damaged one
        return None
