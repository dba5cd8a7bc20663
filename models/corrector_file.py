"""Read the header of a corrector file (safetensors) before any library sees it, and refuse one that is not sound.

The file is the length of a header in 8 bytes (little endian), the header as JSON, and the bytes of all tensors
(https://github.com/huggingface/safetensors). The header gives type, shape and place of each tensor. Nothing in the file
is executed, and memory is allocated only for numbers that the file really holds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.common.errors import InputError
from data_pipeline.common.file_format import SAFETENSORS_FORMAT, UNKNOWN_FORMAT, file_format, wrong_format

LONGEST_HEADER = 2**25
"""Largest header in bytes; the header of 100,000 stations has 5 million."""
MOST_BRACKETS = 200_000
"""Most objects and lists of a JSON text: each may have 2 bytes in the text, but needs 60 or more in Python."""
MOST_VALUES = 2_000_000
DEEPEST = 40
"""Deepest nesting of objects and lists; descriptions have fewer than 15 levels."""
MOST_DIMENSIONS = 16
TYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Bytes of one number of each type that PyTorch writes."""


@dataclass(frozen=True)
class CorrectorHeader:
    """Shape and type of each tensor of a corrector file by name, and the description as JSON text."""

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]
    description: str


def read_header(path: str | Path) -> CorrectorHeader:
    """Return the header of a corrector file. Raises `InputError` if the file is missing, damaged or not a corrector."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no corrector {path}; train one with `deepweather train`")
    if file_format(path) not in (SAFETENSORS_FORMAT, UNKNOWN_FORMAT):
        raise wrong_format(path, "a corrector (safetensors)")
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 10 or length > size - 8:
                raise ValueError(f"its header should have {length} bytes, and the file has {size}")
            if length > LONGEST_HEADER:
                raise ValueError(f"its header has {length} bytes, and no corrector needs more than {LONGEST_HEADER}")
            text = file.read(length).decode()
        values = plain_json(text)
        metadata = values.pop("__metadata__", {}) if isinstance(values, dict) else None
        if not isinstance(values, dict) or not isinstance(metadata, dict):
            raise ValueError("its header is no mapping")
        shapes, types = _check_tensors(values, size - 8 - length)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a complete safetensors file ({error}); train the corrector again") from None
    if not isinstance(description := metadata.get("deepweather"), str):
        raise InputError(f"{path} holds tensors but no corrector; use the corrector.safetensors of a training run")
    return CorrectorHeader(shapes, types, description)


def plain_json(text: str) -> Any:
    """Return the value of a JSON text. Raises `ValueError` if it is invalid, deep, huge, or repeats a key."""
    if text.count("[") + text.count("{") > MOST_BRACKETS or text.count(",") > MOST_VALUES:
        raise ValueError("its JSON has more parts than any corrector")
    # The depth is checked before the text is parsed: the parser of old versions of Python overflows the stack.
    depth = deepest = 0
    for bracket in re.finditer(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', text):
        if (found := bracket[0]) in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif found in "]}":
            depth -= 1
    if deepest > DEEPEST:
        raise ValueError(f"its JSON is {deepest} levels deep, and no corrector needs more than {DEEPEST}")
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"its JSON has the key {next(n for n in names if names.count(n) > 1)!r} twice")
    return found


def _check_tensors(values: Mapping[str, Any], size: int) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Return shapes and types; `ValueError` unless the tensors fill the `size` bytes after the header exactly."""
    shapes, types, spans = {}, {}, []
    for name, entry in values.items():
        if not name.isprintable() or "/" in name or "\\" in name or ".." in name or not 0 < len(name) <= 512:
            raise ValueError(f"a tensor has the name {name[:80]!r}, which is no name in a model")
        if not isinstance(entry, dict) or {*entry} != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name} has no type, shape and place")
        kind, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(kind, str) or kind not in TYPE_BYTES:
            raise ValueError(f"{name} has the type {str(kind)[:20]!r}, which no corrector has")
        if not _are_sizes(shape) or len(shape) > MOST_DIMENSIONS or not _are_sizes(span) or len(span) != 2:
            raise ValueError(f"{name} has an invalid shape or place")
        if span[1] - span[0] != TYPE_BYTES[kind] * math.prod(shape):
            raise ValueError(f"{name} has another size than its shape")
        shapes[name], types[name] = tuple(shape), kind
        spans.append(tuple(span))
    end = 0
    for first, last in sorted(spans):
        if first != end:
            raise ValueError("its tensors overlap, or leave gaps")
        end = last
    if end != size:
        raise ValueError(f"its tensors have {end} bytes, and the file has {size} for them")
    return shapes, types


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**48 for value in values)
