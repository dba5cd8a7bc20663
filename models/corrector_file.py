"""Read the header of a corrector file (safetensors), and refuse a file or a description that is not sound.

The package safetensors checks type, shape and place of each tensor, and executes nothing of the file.
"""

from __future__ import annotations

import json
import re
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


def read_header(path: str | Path) -> tuple[dict[str, tuple[int, ...]], str]:
    """Return the shape of each tensor of a corrector file by name, and the description as JSON text.

    Raises `InputError` if the file is missing, damaged or not a corrector.
    """
    from safetensors import SafetensorError, safe_open  # not in the slim installation, which reads `plain_json`

    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no corrector {path}; train one with `deepweather train`")
    if file_format(path) not in (SAFETENSORS_FORMAT, UNKNOWN_FORMAT):
        raise wrong_format(path, "a corrector (safetensors)")
    try:
        with path.open("rb") as content:
            length = int.from_bytes(content.read(8), "little")
        if LONGEST_HEADER < length < path.stat().st_size:
            raise ValueError(f"its header has {length} bytes, and no corrector needs more than {LONGEST_HEADER}")
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            description = (file.metadata() or {}).get("deepweather")
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})") from None
    except (SafetensorError, ValueError) as error:
        reason = repr(str(error)[:200])  # it may quote any bytes of the file
        raise InputError(f"{path} is not a complete safetensors file ({reason}); train the corrector again") from None
    if odd := next((name for name in shapes if not name.isprintable() or len(name) > 512), None):
        raise InputError(f"{path} has a tensor {odd[:80]!r}, which is no name in a model; train the corrector again")
    if description is None:
        raise InputError(f"{path} holds tensors but no corrector; use the corrector.safetensors of a training run")
    return shapes, description


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
