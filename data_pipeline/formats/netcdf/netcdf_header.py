"""Header of a NetCDF file: its variables, their attributes and the values of coordinates, cached as stored in the file.

A cached header is used only while path, size and times of its file and the version of the reader are unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.file_format import wrong_format
from data_pipeline.common.identity import field_count
from data_pipeline.formats.cache_files import read_cache, write_cache
from data_pipeline.formats.cf.cf_header import Header, StoredVariable
from data_pipeline.formats.netcdf.file import NetCDFFile, is_netcdf
from data_pipeline.formats.reader_versions import READER_VERSIONS

if TYPE_CHECKING:
    import netCDF4


def netcdf_header(path: Path) -> Header:
    """Return the header of a file, from the cache if possible."""
    return _read(path)[1]


def describe_structure(path: Path) -> tuple[Any, ...]:
    """Return what identifies a file beside its bytes: the number of its fields, and the contents of its header."""
    structure, _ = _read(path)
    variables = {
        name: [stored.dimensions, stored.shape, stored.kind, dict(stored.attributes)]
        for name, stored in structure.variables.items()
    }
    read = {name: values.tolist() for name, values in structure.read.items()}
    return sum(field_count(stored.shape) for stored in structure.variables.values()), variables, read


def _read(path: Path) -> tuple[FileStructure, Header]:
    file = NetCDFFile.at(path)
    if structure := load_structure(file):
        try:
            return structure, _interpret(file, structure)
        except KeyError:
            pass  # written by a version that read the values of fewer variables; read the file again
    if not is_netcdf(path):
        raise wrong_format(path, "NetCDF")
    with file.open() as dataset:
        file.refuse_if_cut_off(dataset)
        try:
            variables = {name: _stored(variable) for name, variable in dataset.variables.items()}
            structure = FileStructure.of(tuple(dataset.dimensions), variables, tuple(dataset.groups))
            header = _interpret(file, structure)
        except (OSError, RuntimeError) as error:
            raise InputError(f"{path} is damaged: its header cannot be read ({error}); fetch it again") from None
    save_structure(file, structure)
    return structure, header


def _interpret(file: NetCDFFile, structure: FileStructure) -> Header:
    """Return the header of a file; an `InputError` if it has no variables that can be read."""
    header = Header.of(file, structure.dimensions, structure.variables)
    if structure.groups and not header.variables:
        raise InputError(
            f"{file.path} keeps its variables in groups ({', '.join(structure.groups)}), which are not read; "
            f"extract one first, for instance with ncks -G : -g {structure.groups[0]}"
        )
    if structure.dimensions and all(name.startswith("phony_dim_") for name in structure.dimensions):
        raise InputError(
            f"{file.path} is HDF5 without the dimensions of NetCDF-4, so its arrays have no coordinates; "
            "convert it to NetCDF first"
        )
    return header


def _stored(variable: netCDF4.Variable) -> StoredVariable:
    kind, dimensions = getattr(variable.dtype, "kind", "O"), variable.dimensions
    if kind == "u" and str(getattr(variable, "_Unsigned", "")).lower() == "false":
        raise InputError(
            f"{variable.group().filepath()} ({variable.name}) holds signed numbers in an unsigned type (_Unsigned is "
            "false), which are not read from NetCDF; store them in a signed type"
        )
    if variable.dtype == "S1" and dimensions:
        dimensions = dimensions[:-1]  # the last dimension counts the letters of a text
    shape = variable.shape[: len(dimensions)]
    return StoredVariable(dimensions, shape, kind, variable.__dict__, partial(_values, variable))


def _values(variable: netCDF4.Variable) -> np.ndarray:
    values = variable[...]
    if variable.dtype == "S1" and values.dtype == "S1":
        from netCDF4 import chartostring

        return np.char.strip(chartostring(np.ma.filled(values, b"")))
    return np.ma.filled(values.astype(np.float64), np.nan) if np.ma.is_masked(values) else np.asarray(values)


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
        for name, (axes, shape, kind, attributes) in header["variables"].items():
            own = {key: _decode(value, arrays) for key, value in attributes.items()}
            variables[name] = StoredVariable(tuple(axes), tuple(shape), kind, own, partial(read.__getitem__, name))
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
