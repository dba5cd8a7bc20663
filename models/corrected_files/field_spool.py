"""FieldSpool: corrected fields that wait until their message is written, in bounded memory.

A file may hold all lead times of one member before the next member. Its corrected forecasts are then complete only at
the end of the file, and together may be larger than the memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Hashable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from data_pipeline.common.files import disk_error


class FieldSpool:
    """Keeps fields of one shape by key: the fields of the last `add` in memory, older ones in a file beside `output`.

    Only fields that were not taken yet move to the file, so an input that holds whole forecasts, one after the other,
    needs no such file. The file has no name, so it vanishes even if the process is killed. The space of a taken field
    is used again.
    """

    def __init__(self, output: Path) -> None:
        self._output, self._stack = output, ExitStack()
        self._recent: dict[Hashable, np.ndarray] = {}
        self._taken: set[Hashable] = set()
        self._form: tuple[tuple[int, ...], np.dtype] = (), np.dtype(np.float64)
        self._slots: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._file: IO[bytes] | None = None

    def __contains__(self, key: Hashable) -> bool:
        return key in self._recent or key in self._slots

    def add(self, fields: Mapping[Hashable, np.ndarray]) -> None:
        """Keep `fields` in memory; earlier ones that were not taken yet move to the file."""
        self.make_room(fields)
        self._free += [self._slots.pop(key) for key in fields if key in self._slots]
        self._recent = dict(fields)
        self._form = next(((field.shape, field.dtype) for field in fields.values()), self._form)

    def make_room(self, replaced: Collection[Hashable] = ()) -> None:
        """Move all fields that were not taken yet to the file, except those that are `replaced`."""
        for key, field in self._recent.items():
            if key not in self._taken and key not in replaced:
                self._write(key, field)
        self._recent, self._taken = {}, set()

    def take(self, key: Hashable) -> np.ndarray:
        """Return a field; forget it if it was in the file, or if all others of the last call of `add` were taken."""
        if key in self._recent:
            self._taken.add(key)
            field = self._recent[key]
            if len(self._taken) == len(self._recent):
                self._recent, self._taken = {}, set()  # frees the memory before the next forecast is corrected
            return field
        assert self._file is not None
        slot = self._slots.pop(key)
        self._free.append(slot)
        field = np.empty(*self._form)
        self._file.seek(slot * field.nbytes)
        self._file.readinto(field.data)  # type: ignore[attr-defined]
        return field

    def _write(self, key: Hashable, field: np.ndarray) -> None:
        slot = self._free.pop() if self._free else len(self._slots)
        try:
            if self._file is None:
                self._file = self._stack.enter_context(tempfile.TemporaryFile(dir=self._output.parent))  # noqa: SIM115
            self._file.seek(slot * field.nbytes)
            self._file.write(np.ascontiguousarray(field).data)
        except OSError as error:
            raise disk_error(error, self._output) or error from None
        self._slots[key] = slot

    def __enter__(self) -> FieldSpool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recent.clear()
        self._stack.close()
