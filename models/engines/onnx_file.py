"""Read the description of an exported corrector from its ONNX file, and refuse a damaged or unsafe file.

The file is a Protocol Buffers message (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto). The fields that matter
here are found without the package `onnx`. A model is a list of operations on tensors. A file that refers to other
files, or that holds loops, branches, functions or operations of other domains, is refused before ONNX Runtime sees it.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.file_format import ONNX_FORMAT, file_format, wrong_format
from data_pipeline.common.identity import sha256_of_bytes
from models.corrector_file import plain_json

PRODUCER = "deepweather"
DESCRIPTION, DETAILS = "deepweather", "deepweather_onnx"
"""Keys of the metadata: the description of the exported corrector file, and the details that the export adds."""
EXPORT_FORMAT = 2
INPUTS = ("ensemble", "mask", "init_time", "lead_time")
"""The inputs of the graph: the fields of `Sample` except static fields and truth, with a batch of one."""
LARGEST_FILE = 2**31 - 1
"""Protocol Buffers have no larger messages."""

_GRAPH, _METADATA = 7, 14
_PRODUCER, _TRAINING, _FUNCTIONS = 2, 20, 25
_NODE, _INITIALIZER, _SPARSE = 1, 5, 15
_ATTRIBUTE, _DOMAIN, _OPERATION = 5, 7, 4
_TENSOR, _TENSORS, _SUBGRAPH, _SUBGRAPHS, _SPARSE_VALUE, _SPARSE_VALUES = 5, 10, 6, 11, 22, 23
_DATA_TYPE, _FLOATS, _RAW, _EXTERNAL, _LOCATION = 2, 4, 9, 13, 14
_FLOAT_TYPES = {1: "<f4", 11: "<f8"}
"""Numbers of fields and types in onnx.proto."""


@dataclass(frozen=True)
class ExportedFile:
    """An exported corrector: the bytes of the file, the corrector's description, and the details of the export."""

    content: bytes
    sha256: str
    description: Mapping[str, Any]
    details: Mapping[str, Any]


def read_exported(path: str | Path) -> ExportedFile:
    """Return the contents of an exported corrector.

    Raises `InputError` for a missing or damaged file, for a model of another program, and for an unsafe model.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no corrector {path}; make one with `deepweather export`")
    if file_format(path) is not ONNX_FORMAT:
        raise wrong_format(path, "an exported corrector (ONNX)")
    if path.stat().st_size > LARGEST_FILE:
        raise InputError(f"{path} is larger than any ONNX file; export the corrector again")
    content = path.read_bytes()
    try:
        metadata, graph = _read_model(path, memoryview(content))
        description, details = (plain_json(metadata[key]) for key in (DESCRIPTION, DETAILS))
        version, found = details["format"], details["graph_sha256"]
        if not isinstance(description, dict):
            raise ValueError("its description is no mapping")
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise InputError(
            f"{path} is not a complete exported corrector ({type(error).__name__}: {error}); export the corrector again"
        ) from None
    if version != EXPORT_FORMAT:
        raise InputError(
            f"{path} has the export format {version}, this version reads {EXPORT_FORMAT}; export the corrector again"
        )
    if sha256_of_bytes(graph) != found:
        raise InputError(f"{path} is damaged: the hash of its graph is wrong; fetch it, or export it, again")
    return ExportedFile(content, sha256_of_bytes(content), description, details)


def pack_mask(mask: np.ndarray) -> str:
    """Return a field of True and False as text for the details of a file."""
    return base64.b64encode(zlib.compress(np.packbits(mask).tobytes())).decode()


def unpack_mask(text: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the field of `pack_mask`; `ValueError` if the text holds something else."""
    size = int(np.prod(shape))
    packed = zlib.decompressobj()
    try:
        # The size is limited, because a text of a few bytes can unpack to any size.
        octets = packed.decompress(base64.b64decode(text, validate=True), (size + 7) // 8)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"a mask cannot be unpacked: {error}") from None
    if len(octets) != (size + 7) // 8:
        raise ValueError("a mask has another size than the grid")
    return np.unpackbits(np.frombuffer(octets, np.uint8), count=size).astype(bool).reshape(shape)


def _read_model(path: Path, content: memoryview) -> tuple[dict[str, str], memoryview]:
    """Return metadata and graph; raise `InputError` for an unsafe model."""
    metadata: dict[str, str] = {}
    graph = memoryview(b"")
    for number, value in _fields(content):
        if number == _GRAPH:
            if len(graph):
                raise ValueError("it has two graphs")
            graph = _message(value)
            _check_graph(path, graph)
        elif number == _METADATA:
            entry = {key: bytes(_message(text)).decode() for key, text in _fields(_message(value))}
            metadata[entry[1]] = entry[2]
        elif number in (_TRAINING, _FUNCTIONS):
            raise _refused(path, "holds functions")
    return metadata, graph


def _check_graph(path: Path, graph: memoryview) -> None:
    for number, value in _fields(graph):
        if number == _NODE:
            _check_node(path, _message(value))
        elif number == _INITIALIZER:
            _check_tensor(path, _message(value))
        elif number == _SPARSE:
            raise _refused(path, "holds sparse tensors")


def _check_node(path: Path, node: memoryview) -> None:
    for number, value in _fields(node):
        if number == _DOMAIN and (domain := bytes(_message(value)).decode()) not in ("", "ai.onnx"):
            raise _refused(path, f"holds an operation of the domain {domain!r}")
        if number == _ATTRIBUTE:
            for kind, part in _fields(_message(value)):
                if kind in (_SUBGRAPH, _SUBGRAPHS):
                    raise _refused(path, "holds a loop or a branch")
                if kind in (_SPARSE_VALUE, _SPARSE_VALUES):
                    raise _refused(path, "holds sparse tensors")
                if kind in (_TENSOR, _TENSORS):
                    _check_tensor(path, _message(part))


def _check_tensor(path: Path, tensor: memoryview) -> None:
    kind = 0
    for number, value in _fields(tensor):
        if number == _EXTERNAL or (number == _LOCATION and value):
            raise _refused(path, "refers to another file")
        if number == _DATA_TYPE and isinstance(value, int):
            kind = value
        known = number in (_RAW, _FLOATS) and kind in _FLOAT_TYPES
        # A single NaN is the value of missing cells.
        if known and isinstance(value, memoryview) and len(value) > 8 and _has_nan(value, _FLOAT_TYPES[kind]):
            raise InputError(
                f"{path} has weights that are not numbers, because its training diverged; train the corrector "
                "again, for example with a lower learning rate"
            )


def _has_nan(values: memoryview, kind: str) -> bool:
    return bool(np.isnan(np.frombuffer(values, kind)).any())


def _refused(path: Path, what: str) -> InputError:
    return InputError(f"{path} {what}, which no exported corrector does; export the corrector again")


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number stands where a message is expected")
    return value


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field of a message; `ValueError` if the message is cut off.

    Encoding: https://protobuf.dev/programming-guides/encoding/.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        value: int | memoryview
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = data[at : at + size], at + size
        elif kind == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"a field has the unknown type {kind}")
        if at > len(data):
            raise ValueError("it is cut off")
        yield number, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        octet = data[at]  # IndexError behind the end
        at += 1
        value |= (octet & 127) << shift
        if octet < 128:
            return value, at
    raise ValueError("a number has more than ten bytes")
