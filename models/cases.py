"""Training cases for models that are fitted at once: what they need of all samples, by lead time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from data_pipeline.errors import InputError
from data_pipeline.sample import Sample
from data_pipeline.task import Task


def gather(
    batches: Iterable[Sample], task: Task, pick: Callable[[Sample], tuple[Tensor, ...]]
) -> list[tuple[Tensor, ...]]:
    """Return, for each lead time of the task, what `pick` takes of its samples: tensors (N, ...).

    `pick` gets a batch and returns tensors with its leading B: all that stays in memory.
    """
    parts: list[list[tuple[Tensor, ...]]] = [[] for _ in task.lead_times]
    for batch in batches:
        picked = pick(batch)
        index = lead_index(batch.lead_time, task)
        for lead in index.unique().tolist():
            parts[lead].append(tuple(tensor[index == lead] for tensor in picked))
    for lead, found in zip(task.lead_times, parts, strict=True):
        if not found:
            raise InputError(f"no training sample has the lead time {lead} h of task {task.name}; add years or drop it")
    return [tuple(torch.cat(tensors) for tensors in zip(*found, strict=True)) for found in parts]


def lead_index(lead_time: Tensor, task: Task) -> Tensor:
    """Return the position (B,) of each lead time (B,) in the task."""
    known = torch.tensor(task.lead_times, device=lead_time.device)
    match = lead_time[:, None] == known
    if not bool(match.any(1).all()):
        alien = int(lead_time[~match.any(1)][0])
        raise InputError(
            f"lead time {alien} h is not one of task {task.name} ({', '.join(map(str, task.lead_times))} h)"
        )
    return match.int().argmax(1)
