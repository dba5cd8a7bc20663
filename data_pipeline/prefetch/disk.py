"""DiskTier: caches samples in a folder on a local disk; the next run can reuse them. Every read checks a checksum.

`encode_sample` and `decode_sample` convert a sample to bytes with a checksum and back; ranks exchange the same bytes.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import threading
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_write
from data_pipeline.common.messages import say
from data_pipeline.sample import Sample

_MAGIC = b"dwsampl1"
_PREFIX = struct.Struct("<8sIQ")
"""Magic, checksum of all bytes after the prefix, number of these bytes."""
_HEADER_BYTES = 1024
_ALIGNMENT = 64
_ENCODED = tuple(name for name in Sample._fields if name != "static")
"""All tensors of a sample but the static fields, which are the same in all samples of a data set."""
SAMPLE_OVERHEAD = _HEADER_BYTES + len(_ENCODED) * _ALIGNMENT
"""Most bytes that encoding adds to the bytes of the tensors."""
_KEY_FILE = "key.json"


def encode_sample(sample: Sample) -> list[memoryview]:
    """Return the encoded sample as pieces of bytes, without copying its tensors."""
    arrays = [np.ascontiguousarray(getattr(sample, name).numpy()) for name in _ENCODED]
    shapes = [getattr(sample, name).shape for name in _ENCODED]
    description = json.dumps([(array.dtype.str, shape) for array, shape in zip(arrays, shapes, strict=True)])
    pieces = [memoryview(description.encode().ljust(_HEADER_BYTES - _PREFIX.size))]
    for array in arrays:
        pieces += [array.reshape(-1).view(np.uint8).data, memoryview(bytes(-array.nbytes % _ALIGNMENT))]
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return [memoryview(_PREFIX.pack(_MAGIC, checksum, sum(map(len, pieces)))), *pieces]


def decode_sample(data: bytearray, static: torch.Tensor) -> Sample | None:
    """Return the sample that is encoded in `data`, without copying its tensors; None if the bytes are damaged."""
    if len(data) < _HEADER_BYTES:
        return None
    magic, checksum, size = _PREFIX.unpack_from(data)
    body = memoryview(data)[_PREFIX.size :]
    if magic != _MAGIC or size != len(body) or zlib.crc32(body) != checksum:
        return None
    description = json.loads(bytes(data[_PREFIX.size : _HEADER_BYTES]))
    return Sample(static=static, **dict(zip(_ENCODED, _decode_fields(data, description), strict=True)))


def _decode_fields(data: bytearray, description: list[tuple[str, list[int]]]) -> Iterator[torch.Tensor]:
    begin = _HEADER_BYTES
    for dtype, shape in description:
        array = np.frombuffer(data, dtype, int(np.prod(shape, dtype=int)), begin)
        yield torch.from_numpy(array.reshape(shape))
        begin += array.nbytes + -array.nbytes % _ALIGNMENT


class DiskTier:
    """Caches the samples `wanted` of one data set; samples of other data sets are removed from the folder.

    One process at a time may use the folder; the kernel releases the lock when the process ends. Samples are not
    flushed to the device; checksums detect samples that a power failure left incomplete.
    """

    def __init__(self, folder: str | Path, fingerprint: str, wanted: Collection[int], sample_bytes: int) -> None:
        self._folder, self._max_bytes = Path(folder), sample_bytes + SAMPLE_OVERHEAD
        self._wanted = frozenset(int(index) for index in wanted)
        self._mutex = threading.Lock()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise InputError(
                f"data.cache.disk_folder: cannot use {folder} ({error.strerror}); choose a writable folder"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise InputError(
                f"data.cache.disk_folder: another run is using {folder}; choose another folder or wait until it ends"
                if isinstance(error, BlockingIOError)
                # Without a lock, another run could overwrite this run's samples.
                else f"data.cache.disk_folder: cannot lock {folder} ({error.strerror}); choose a folder on a local disk"
            ) from None
        self._writing = True
        self._present = self._keep_wanted_files(fingerprint)

    def _keep_wanted_files(self, fingerprint: str) -> set[int]:
        """Remove unwanted sample files and sample files of other data; return the numbers of the remaining samples."""
        key = self._folder / _KEY_FILE
        try:
            same_data = json.loads(key.read_text()) == {"fingerprint": fingerprint}
        except (OSError, ValueError):
            same_data = False
        kept = set()
        for path in self._folder.iterdir():
            if path.name in ("lock", _KEY_FILE):
                continue
            index = int(path.stem) if path.suffix == ".sample" and path.stem.isdigit() else -1
            if same_data and index in self._wanted and path.stat().st_size <= self._max_bytes:
                kept.add(index)
            elif path.is_file() and path.suffix in (".sample", ".partial"):
                path.unlink()
        if not same_data:
            with atomic_write(key, "w") as file:
                json.dump({"fingerprint": fingerprint}, file)
        return kept

    def _path(self, index: int) -> Path:
        return self._folder / f"{index:08d}.sample"

    def __contains__(self, index: int) -> bool:
        return index in self._present

    def __len__(self) -> int:
        return len(self._present)

    def read_bytes(self, index: int) -> bytearray | None:
        """Return the encoded sample without checking it, or None if it is not cached."""
        if index not in self._present:
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
        """Return a sample, or None if it is absent or damaged; a damaged sample is removed and can be put again."""
        data = self.read_bytes(index)
        sample = decode_sample(data, static) if data is not None else None
        if sample is None:
            with self._mutex, suppress(OSError):
                self._present.discard(index)
                self._path(index).unlink()
        return sample

    def put(self, index: int, sample: Sample) -> None:
        """Write a wanted sample. After a failed write, no more samples are written and the run continues."""
        pieces = encode_sample(sample)
        with self._mutex:
            if not self._writing or index in self._present or index not in self._wanted:
                return
        if sum(map(len, pieces)) > self._max_bytes:
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
            say(
                f"data.cache.disk_folder: cannot write to {self._folder} ({error.strerror}); "
                "the run continues without writing more samples there",
                "warning",
                stderr=True,
            )
            return
        with self._mutex:
            self._present.add(index)

    def close(self) -> None:
        """Release the folder's lock; the samples stay."""
        self._writing = False
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
