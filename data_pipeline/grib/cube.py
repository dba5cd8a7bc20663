"""Cube: messages laid out by variable, time and member; what is missing or there twice is said."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import eccodes
import numpy as np

from data_pipeline.errors import InputError
from data_pipeline.grib.gather import Messages


@dataclass(frozen=True, eq=False)
class Cube:
    """Messages by variable and position along `axes`; `cells` holds their rows, -1 where there is none."""

    messages: Messages
    axes: Mapping[str, np.ndarray]
    cells: np.ndarray

    @classmethod
    def of(cls, messages: Messages, values: Mapping[str, np.ndarray]) -> Cube:
        """Lay out `messages` along the axes named in `values`, which say where on each a message belongs.

        Two different messages for one cell, and a cube of which more than half would be missing, are errors.
        """
        axes = {name: np.unique(value) for name, value in values.items()}
        shape = (len(messages.wanted), *(len(axis) for axis in axes.values()))
        positions = [np.searchsorted(axis, values[name]) for name, axis in axes.items()]
        cell = np.ravel_multi_index((messages.rows["variable"], *positions), shape)
        order = np.argsort(cell, kind="stable")
        repeated = np.flatnonzero(np.diff(cell[order]) == 0)
        _refuse_mostly_empty(messages, ("variable", *axes), shape, len(cell) - len(repeated))
        for k in repeated:
            _refuse_contradiction(messages, order[k], order[k + 1])
        cells = np.full(shape, -1, np.int32)
        cells.ravel()[cell] = np.arange(len(cell))
        return cls(messages, axes, cells)

    @property
    def token(self) -> str:
        """Names this cube as long as its files do not change."""
        digest = hashlib.sha256(self.cells.tobytes() + self.messages.rows.tobytes())
        for path in self.messages.paths:
            digest.update(f"{path.absolute()} {path.stat().st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def refuse_holes(self) -> None:
        """Raise an error that names the first field that is missing, if there is one."""
        holes = self.cells < 0
        if not holes.any():
            return
        variable, *position = np.unravel_index(int(holes.argmax()), holes.shape)
        values = (axis[k] for axis, k in zip(self.axes.values(), position, strict=True))
        where = ", ".join(f"{name} {_text(value)}" for name, value in zip(self.axes, values, strict=True))
        file, what = self._nearest_file(variable, position[0]), self.messages.wanted[variable]
        raise InputError(
            f"{file} lacks {what} at {where}, the first of {holes.sum()} missing fields; complete the files, "
            "name other variables or lead times, or set missing to mask"
        )

    def _nearest_file(self, variable: np.intp, time: np.intp) -> Path:
        """Return the file where a missing field should be: it holds the variable and time, or one of them."""
        times = self.cells.reshape(*self.cells.shape[:2], -1)
        for near in (times[variable, time], times[:, time], times[variable]):
            if (near >= 0).any():
                return self.messages.paths[self.messages.rows["file"][near[near >= 0][0]]]
        return self.messages.paths[0]


def _refuse_mostly_empty(messages: Messages, names: Sequence[str], shape: Sequence[int], filled: int) -> None:
    """Refuse to make a cube of which more than half would be missing, before memory is taken for it."""
    fields = int(np.prod(shape, dtype=np.int64))
    if 2 * filled >= fields:
        return
    size = fields * np.prod(messages.source.shape) * 4 / 1e6
    sizes = " x ".join(f"{name} {count}" for name, count in zip(names, shape, strict=True))
    raise InputError(
        f"{messages} has only {filled} of the {fields} fields that belong together ({sizes}, {size:.0f} MB): "
        f"{1 - filled / fields:.0%} are missing; name variables, lead times or files that go together"
    )


def _refuse_contradiction(messages: Messages, first: int, second: int) -> None:
    """Refuse two messages for one cell, unless they are the same byte for byte."""
    one, other = messages.message(first), messages.message(second)
    if one == other:
        return
    keys, others = _keys(one), _keys(other)
    differ = [
        f"{key} {keys.get(key)} and {others.get(key)}" for key in {**keys, **others} if keys.get(key) != others.get(key)
    ]
    raise InputError(
        f"{messages.place(first)} and {messages.place(second)} both hold "
        f"{messages.wanted[messages.rows['variable'][first]]} for the same time and member; they differ in "
        f"{', '.join(differ) or 'their values only'}; keep one of them, for instance with ecCodes' grib_copy"
    )


def _keys(message: bytes) -> dict[str, str]:
    """Return the keys that may tell two messages apart."""
    handle = eccodes.codes_new_from_message(message)
    keys = {}
    try:
        for namespace in ("ls", "mars"):
            iterator = eccodes.codes_keys_iterator_new(handle, namespace)
            while eccodes.codes_keys_iterator_next(iterator):
                name = eccodes.codes_keys_iterator_get_name(iterator)
                keys[name] = eccodes.codes_get_string(handle, name)
            eccodes.codes_keys_iterator_delete(iterator)
    finally:
        eccodes.codes_release(handle)
    return keys


def _text(value: np.generic) -> str:
    return str(value.astype("datetime64[m]")) if isinstance(value, np.datetime64) else str(value)
