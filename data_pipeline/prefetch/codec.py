"""A sample as bytes and back, with a checksum; for the disk tier and for other ranks."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import torch

from data_pipeline.sample import Sample

MAGIC = b"dwsampl1"
HEAD = struct.Struct("<8sIQ")
"""Magic, checksum of all that follows the head, number of bytes that follow."""
HEADER_BYTES = 1024
ALIGNMENT = 64
SENT = tuple(name for name in Sample._fields if name != "static")
"""Static fields are the same in all samples of a data set; its users have them."""
OVERHEAD = HEADER_BYTES + len(SENT) * ALIGNMENT
"""At most so many bytes are added to those of the fields."""


def encode(sample: Sample) -> list[memoryview]:
    """Return the bytes of a sample in pieces, without copying its fields."""
    arrays = [np.ascontiguousarray(getattr(sample, name).numpy()) for name in SENT]
    shapes = [getattr(sample, name).shape for name in SENT]
    described = json.dumps([(array.dtype.str, shape) for array, shape in zip(arrays, shapes, strict=True)])
    pieces = [memoryview(described.encode().ljust(HEADER_BYTES - HEAD.size))]
    for array in arrays:
        pieces += [array.reshape(-1).view(np.uint8).data, memoryview(bytes(-array.nbytes % ALIGNMENT))]
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return [memoryview(HEAD.pack(MAGIC, checksum, sum(map(len, pieces)))), *pieces]


def decode(data: bytearray, static: torch.Tensor) -> Sample | None:
    """Return the sample, whose fields lie in `data`, or None if the bytes are not what `encode` made."""
    if len(data) < HEADER_BYTES:
        return None
    magic, checksum, size = HEAD.unpack_from(data)
    body = memoryview(data)[HEAD.size :]
    if magic != MAGIC or size != len(body) or zlib.crc32(body) != checksum:
        return None
    described = json.loads(bytes(data[HEAD.size : HEADER_BYTES]))
    return Sample(static=static, **dict(zip(SENT, _fields(data, described), strict=True)))


def _fields(data: bytearray, described: list[tuple[str, list[int]]]) -> Iterator[torch.Tensor]:
    begin = HEADER_BYTES
    for dtype, shape in described:
        array = np.frombuffer(data, dtype, int(np.prod(shape, dtype=int)), begin)
        yield torch.from_numpy(array.reshape(shape))
        begin += array.nbytes + -array.nbytes % ALIGNMENT
