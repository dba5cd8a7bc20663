"""Header of a NetCDF file: its variables and their attributes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.file_format import wrong_format
from data_pipeline.common.identity import field_count
from data_pipeline.formats.cf.cf_header import Header, StoredVariable
from data_pipeline.formats.netcdf.file import NetCDFFile, is_netcdf
from data_pipeline.formats.netcdf.header_cache import FileStructure, load_structure, save_structure

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
