"""Cache of NetCDF headers: variables, attributes and values of coordinates, as stored in the file.

A cached header is used only while path, size and times of its file and the version of the reader are unchanged.
`data_pipeline.formats.cf` interprets cached headers again in every run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from data_pipeline.formats.cache_files import read_cache, write_cache
from data_pipeline.formats.cf.cf_header import StoredVariable
from data_pipeline.formats.netcdf.file import NetCDFFile
from data_pipeline.formats.reader_versions import READER_VERSIONS

_CACHE_VERSION = 2
"""Increased whenever the cached header of an unchanged file would differ."""
LARGEST_HEADER = 1 << 23
"""Most bytes of coordinates that are cached; more, as of curvilinear grids, would fill the cache's disk."""


@dataclass(frozen=True, eq=False)
class FileStructure:
    """Dimensions, variables and groups of a file; `read` collects by name the values that were read."""

    dimensions: tuple[str, ...]
    variables: Mapping[str, StoredVariable]
    groups: tuple[str, ...]
    read: dict[str, np.ndarray]

    @classmethod
    def of(
        cls, dimensions: tuple[str, ...], variables: Mapping[str, StoredVariable], groups: tuple[str, ...]
    ) -> FileStructure:
        """Return the structure of an open file."""
        read: dict[str, np.ndarray] = {}

        def values(name: str) -> np.ndarray:
            if name not in read:
                read[name] = variables[name].values()
            return read[name]

        recorded = {name: replace(stored, values=partial(values, name)) for name, stored in variables.items()}
        return cls(dimensions, recorded, groups, read)


def load_structure(file: NetCDFFile) -> FileStructure | None:
    """Return the cached structure of a file, or None. Reading values that are not cached raises a KeyError."""
    if (found := read_cache("netcdf", file.path, _identity(file))) is None:
        return None
    header, arrays = found
    try:
        read = {name: _decode(value, arrays) for name, value in header["read"].items()}
        variables = {}
        for name, (dimensions, shape, kind, attributes) in header["variables"].items():
            own = {key: _decode(value, arrays) for key, value in attributes.items()}
            variables[name] = StoredVariable(
                tuple(dimensions), tuple(shape), kind, own, partial(read.__getitem__, name)
            )
        return FileStructure(tuple(header["dimensions"]), variables, tuple(header["groups"]), read)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def save_structure(file: NetCDFFile, structure: FileStructure) -> None:
    """Write the structure of a file, with the values that were read, to the cache."""
    if sum(values.nbytes for values in structure.read.values()) > LARGEST_HEADER:
        return
    arrays = bytearray()
    variables = {}
    for name, stored in structure.variables.items():
        attributes = {key: _encode(value, arrays) for key, value in stored.attributes.items()}
        variables[name] = stored.dimensions, stored.shape, stored.kind, attributes
    values = {
        "dimensions": structure.dimensions,
        "groups": structure.groups,
        "variables": variables,
        "read": {name: _encode(found, arrays) for name, found in structure.read.items()},
    }
    write_cache("netcdf", file.path, _identity(file), values, bytes(arrays))


def _identity(file: NetCDFFile) -> str:
    return json.dumps([_CACHE_VERSION, READER_VERSIONS["netcdf"], file.state])


def _encode(value: Any, arrays: bytearray) -> Any:
    """Return JSON for an attribute or an array; numbers are appended to `arrays`, so that they keep type and bits."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "OUS":
        return {"texts": value.astype(str).tolist()}
    if isinstance(value, np.ndarray | np.generic):
        place = len(arrays)
        arrays += np.ascontiguousarray(value).tobytes()
        return {"type": value.dtype.str, "shape": value.shape, "place": place, "scalar": isinstance(value, np.generic)}
    return value


def _decode(value: Any, arrays: memoryview) -> Any:
    """Return the value from which `_encode` made `value`."""
    if not isinstance(value, dict):
        return value
    if "texts" in value:
        return np.array(value["texts"], object)
    shape = tuple(value["shape"])
    found = np.frombuffer(arrays, value["type"], int(np.prod(shape)), value["place"]).reshape(shape)
    return found[()] if value["scalar"] else found
