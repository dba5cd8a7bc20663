"""The shape of a mesh, as the options give it. Imports no PyTorch, so that a job can be submitted quickly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data_pipeline.common.errors import InputError

FORMS = "[data, spatial], [data, bands, sectors] or [data, bands, sectors, channels]"
"""The ways to write the shape of a mesh."""


AUTO = "auto"
"""In place of a shape, `trainer.mesh=auto` chooses the mesh with the shortest estimated step."""


def mesh_shape(shape: Sequence[int] | str, option: str) -> tuple[int, int, int, int]:
    """Return the numbers of data ranks, bands, sectors and channel ranks of `shape`, which is one of `FORMS`."""
    if shape == AUTO:
        raise InputError(
            f"{option}=auto chooses a mesh for the running processes of `deepweather train`; write its numbers here: "
            f"{FORMS}"
        )
    numbers: tuple[Any, ...] = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if len(numbers) not in (2, 3, 4) or any(type(number) is not int or number < 1 for number in numbers):
        raise InputError(f"{option} must be {FORMS}, each at least 1, got {list(numbers)}")
    data, bands, sectors, channels = (*numbers, 1, 1)[:4]
    return data, bands, sectors, channels
