"""DiskTier: samples in a folder of a local disk, each checked when it is read, kept for the next run."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import torch

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_write
from data_pipeline.prefetch.codec import OVERHEAD, decode, encode
from data_pipeline.sample import Sample

KEY = "key.json"


class DiskTier:
    """Holds the samples `wanted` of one data set and no others; whatever else is in its folder is removed.

    The folder belongs to one process at a time; the lock is the kernel's and ends with the process. Samples are not
    flushed to the device: the checksum finds those that a power cut left half-written.
    """

    def __init__(self, folder: str | Path, fingerprint: str, wanted: Collection[int], sample_bytes: int) -> None:
        self._folder, self._limit = Path(folder), sample_bytes + OVERHEAD
        self._wanted = frozenset(int(index) for index in wanted)
        self._mutex = threading.Lock()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise InputError(
                f"data.cache.folder: cannot use {folder} ({error.strerror}); choose a folder you may write to"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise InputError(
                f"data.cache.folder: {folder} is in use by another run; choose another folder or wait for it to end"
            ) from None
        self._writing = True
        self._held = self._take_over(fingerprint)

    def _take_over(self, fingerprint: str) -> set[int]:
        """Keep the files of the same data that are wanted, remove the others; return what is kept."""
        key = self._folder / KEY
        try:
            known = json.loads(key.read_text()) == {"fingerprint": fingerprint}
        except (OSError, ValueError):
            known = False
        kept = set()
        for path in self._folder.iterdir():
            if path.name in ("lock", KEY):
                continue
            index = int(path.stem) if path.suffix == ".sample" and path.stem.isdigit() else -1
            if known and index in self._wanted and path.stat().st_size <= self._limit:
                kept.add(index)
            elif path.is_file() and path.suffix in (".sample", ".partial"):
                path.unlink()
        if not known:
            with atomic_write(key, "w") as file:
                json.dump({"fingerprint": fingerprint}, file)
        return kept

    def _path(self, index: int) -> Path:
        return self._folder / f"{index:08d}.sample"

    def __contains__(self, index: int) -> bool:
        return index in self._held

    def __len__(self) -> int:
        return len(self._held)

    def read(self, index: int) -> bytearray | None:
        """Return the bytes of a sample, unchecked, or None if they are not there."""
        if index not in self._held:
            return None
        try:
            with self._path(index).open("rb", buffering=0) as file:
                data = bytearray(os.fstat(file.fileno()).st_size)
                view, done = memoryview(data), 0
                while done < len(data):
                    if not (count := file.readinto(view[done:])):
                        return None
                    done += count
                return data
        except OSError:
            return None

    def get(self, index: int, static: torch.Tensor) -> Sample | None:
        """Return a sample, or None, after which it is to be put again: it was never here, or is damaged."""
        data = self.read(index)
        sample = decode(data, static) if data is not None else None
        if sample is None:
            with self._mutex, suppress(OSError):
                self._held.discard(index)
                self._path(index).unlink()
        return sample

    def put(self, index: int, sample: Sample) -> None:
        """Write a wanted sample; a disk that refuses is left alone from then on, for the run can do without."""
        pieces = encode(sample)
        with self._mutex:
            if not self._writing or index in self._held or index not in self._wanted:
                return
        if sum(map(len, pieces)) > self._limit:
            return
        partial = self._path(index).with_suffix(f".{threading.get_ident()}.partial")
        try:
            with partial.open("wb", buffering=0) as file:
                for piece in pieces:
                    while len(piece):
                        piece = piece[file.write(piece) :]
            partial.replace(self._path(index))
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            self._writing = False
            print(
                f"data.cache.folder: {self._folder} takes no more samples ({error.strerror}); going on without",
                file=sys.stderr,
                flush=True,
            )
            return
        with self._mutex:
            self._held.add(index)

    def close(self) -> None:
        """Give the folder back; the samples stay."""
        self._writing = False
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
