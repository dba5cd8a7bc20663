"""A small cache of decoded chunks: consecutive readings of chunks that span several times decode each chunk once."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

CHUNK_CACHE_BYTES = 256 << 20
"""Bytes of decoded chunks that a process keeps."""


@dataclass
class _Entry:
    lock: Lock = field(default_factory=Lock)
    values: np.ndarray | None = None


class ChunkCache:
    """Keeps the chunks used last, up to `max_bytes`; threads that ask for the same chunk wait for one of them.

    A chunk larger than the cache is decoded each time. The arrays are shared: nobody may write to them.
    """

    def __init__(self, max_bytes: int = CHUNK_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = Lock()
        self._bytes = 0
        os.register_at_fork(after_in_child=self._forget)

    def get(self, key: Hashable, load: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the array of a key; `load` makes it if the cache does not have it."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
        with entry.lock:
            if entry.values is not None:
                return entry.values
            try:
                values = load()
            except BaseException:
                self._remove(key, entry)
                raise
            self._keep(key, entry, values)
            return values

    def _keep(self, key: Hashable, entry: _Entry, values: np.ndarray) -> None:
        with self._lock:
            if self._entries.get(key) is not entry:
                return
            if values.nbytes > self.max_bytes:
                del self._entries[key]
                return
            entry.values = values
            self._bytes += values.nbytes
            for other in [k for k, e in self._entries.items() if e.values is not None and e is not entry]:
                if self._bytes <= self.max_bytes:
                    break
                removed = self._entries.pop(other).values
                self._bytes -= removed.nbytes if removed is not None else 0

    def _remove(self, key: Hashable, entry: _Entry) -> None:
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]

    def _forget(self) -> None:
        """Start empty in a forked process, where threads that held a lock do not exist."""
        self._lock, self._bytes = Lock(), 0
        self._entries.clear()
