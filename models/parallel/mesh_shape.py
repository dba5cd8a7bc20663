"""The shape of a mesh, as the options give it. Imports no PyTorch, so that a job can be submitted quickly."""

from __future__ import annotations

from collections.abc import Sequence

from data_pipeline.common.errors import InputError


def mesh_shape(shape: Sequence[int], option: str) -> tuple[int, int, int]:
    """Return the numbers of data ranks, bands and sectors of `shape`, [data, spatial] or [data, bands, sectors]."""
    numbers = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if len(numbers) not in (2, 3) or any(type(number) is not int or number < 1 for number in numbers):
        raise InputError(
            f"{option} must be [data, spatial] or [data, bands, sectors], each at least 1, got {list(numbers)}"
        )
    data, bands, sectors = numbers if len(numbers) == 3 else (*numbers, 1)
    return data, bands, sectors
