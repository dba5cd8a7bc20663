"""Datasets of xarray as a source of `open_ensemble`, `open_analysis` and `open_static`, like files.

Also what becomes a dataset: field lists of earthkit-data, and the parts of a DataTree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import FileAddress, Url
from data_pipeline.formats.catalog import DOUBLE
from data_pipeline.formats.cf.block import FieldBlock
from data_pipeline.formats.cf.cf_catalog import BlockCatalog
from data_pipeline.formats.cf.cf_header import DataVariable, Header, StoredVariable
from data_pipeline.formats.cf.positions import compact
from data_pipeline.formats.levels import on_model_level
from data_pipeline.grid import Grid
from data_pipeline.protocols import Window, fill_missing
from data_pipeline.variables.meaning import LEVEL_ATTRIBUTE

_PRESSURE, _SURFACE = ("pl", "isobaricInhPa", "isobaricInPa", "pressure"), ("sfc", "surface", "meanSea")


class Convertible(Protocol):
    """An object that becomes a dataset, such as a field list of earthkit-data."""

    def to_xarray(self) -> Any:
        """Return the dataset."""


Given = xr.Dataset | xr.DataTree | Convertible
"""What can stand in place of files."""


class DatasetAddress(Url):
    """The address of a dataset in memory; as text, the subject of messages."""

    dataset: xr.Dataset

    @classmethod
    def of(cls, given: Given, part: str) -> DatasetAddress:
        """Return the address of the `part` (`ensemble`, `analysis` or `static`) of a tree, or of a dataset."""
        address = cls(f"the {part} ({type(given).__name__})")
        address.dataset = _dataset(given, part, str(address))
        return address

    @property
    def state(self) -> str:
        """A text that differs for other values."""
        from dask.base import tokenize

        return f"{self} {tokenize(self.dataset)}"


def _dataset(given: Any, part: str, place: str) -> xr.Dataset:
    if isinstance(given, xr.DataTree):
        if part not in given.children:
            has = ", ".join(given.children) or "none"
            raise InputError(f"{place} lacks the group {part}; its groups are {has}; rename one, or give its dataset")
        return given[part].to_dataset()
    if isinstance(given, xr.DataArray):
        raise InputError(f"{place} is one array; name its variable, such as 2t, with array.to_dataset(name='2t')")
    if isinstance(given, xr.Dataset):
        return given
    try:
        try:
            found = given.to_xarray(squeeze=False)  # earthkit-data drops starts and levels of one value otherwise
        except TypeError:
            found = given.to_xarray()
    except ValueError as error:
        raise InputError(
            f"{place} does not become one dataset ({' '.join(str(error).split())}); select fields of one type of level "
            "with the same steps, or open the file of fields.to_target('file', 'fields.grib')"
        ) from None
    return _with_levels(_dataset(found, part, place), place)


def _with_levels(dataset: xr.Dataset, place: str) -> xr.Dataset:
    """Return a dataset whose dimension `level` is a pressure; earthkit-data counts model levels in the same way."""
    if "level_type" not in dataset.dims:
        return dataset
    kinds = [str(kind) for kind in dataset.level_type.values.tolist()]
    if len(kinds) > 1:
        raise InputError(f"{place} has levels of the types {', '.join(kinds)}; select fields of one, and open each")
    dataset = dataset.isel(level_type=0, drop=True)
    if kinds[0] in _PRESSURE or "level" not in dataset.dims:
        return dataset
    if dataset.level.size > 1:
        raise InputError(f"{place} has {dataset.level.size} levels of the type {kinds[0]}; select fields of one level")
    level, kind = float(dataset.level.values[0]), "hybrid" if kinds[0] == "ml" else kinds[0]
    stated = {} if kind in _SURFACE else {LEVEL_ATTRIBUTE: "hybrid" if kind == "hybrid" else f"{kind} {level:g}"}
    dataset = dataset.isel(level=0, drop=True)
    dataset = dataset.rename({name: on_model_level(str(name), kind, level) for name in dataset.data_vars})
    return dataset.assign({name: array.assign_attrs(stated) for name, array in dataset.data_vars.items()})


@dataclass(frozen=True, eq=False)
class DatasetFile:
    """A dataset as a file of variables."""

    path: DatasetAddress

    def stored_fields(self, data: DataVariable, outer: tuple[str, ...]) -> np.ndarray | None:
        """Return None: all fields exist."""
        return None


def _stored(variable: xr.Variable) -> StoredVariable:
    """Return a variable; dates become seconds since 1970, and durations seconds."""
    attributes: Mapping[str, Any] = {str(name): value for name, value in variable.attrs.items()}
    dimensions, kind = tuple(map(str, variable.dims)), variable.dtype.kind
    if kind not in "mM":
        return StoredVariable(dimensions, variable.shape, kind, attributes, lambda: np.asarray(variable.values))
    unit = "datetime64[s]" if kind == "M" else "timedelta64[s]"
    attributes = {**attributes, "units": "seconds since 1970-01-01" if kind == "M" else "seconds"}
    return StoredVariable(
        dimensions, variable.shape, "i", attributes, lambda: variable.values.astype(unit).astype(np.int64)
    )


@dataclass(frozen=True, eq=False)
class DatasetReader:
    """Reads fields of a dataset on one grid; `block` and `field` give the position of each field."""

    grid: Grid
    blocks: tuple[FieldBlock, ...]
    block: np.ndarray
    field: np.ndarray

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of each field in `wanted` (...) into `out` (..., h, w); NaN where `wanted` is negative."""
        there = fill_missing(wanted, out)
        fields = wanted.ravel()[there]
        for k in np.unique(self.block[fields]).tolist():
            mine = np.flatnonzero(self.block[fields] == k)
            places = zip(*np.unravel_index(there[mine], wanted.shape), strict=True)
            for place, values in zip(places, _values(self.blocks[k], self.field[fields[mine]], window), strict=True):
                out[place] = values.reshape(out[place].shape)


def _values(block: FieldBlock, fields: np.ndarray, window: Window) -> np.ndarray:
    """Return the `window` of fields of a block (n, h, w) in GRIB's units; they are computed together."""
    file, horizontal = block.header.file, block.horizontal
    assert isinstance(file, DatasetFile)
    at = dict(zip(block.outer, np.unravel_index(fields, block.shape), strict=True)) if block.outer else {}
    region = {name: np.unique(positions) for name, positions in at.items()}
    array = file.path.dataset[block.data.name].variable.isel({name: compact(each) for name, each in region.items()})
    values = np.asarray(array.transpose(*block.outer, *block.across).values)
    inside = tuple(np.searchsorted(region[name], at[name]) for name in block.outer)
    cells = values[inside] if inside else values[None]
    cells = cells.reshape(len(fields), horizontal.rows, -1)
    rows = np.atleast_1d(np.arange(horizontal.rows)[:: -1 if horizontal.south_first else 1][window[0]])
    found = cells[:, rows][:, :, np.atleast_1d(horizontal.columns[window[1]])]
    conversion = block.conversion
    return found.astype(DOUBLE) * conversion.factor + conversion.offset if conversion.changes else found


@dataclass(frozen=True, eq=False)
class DatasetCatalog(BlockCatalog):
    """The fields of the `wanted` variables in a dataset."""

    @staticmethod
    def header_of(path: FileAddress) -> Header:
        """Sort the variables into coordinates and data."""
        assert isinstance(path, DatasetAddress)
        variables = {str(name): _stored(variable) for name, variable in path.dataset.variables.items()}
        return Header.of(DatasetFile(path), map(str, path.dataset.dims), variables)

    def reader_on(self, grid: Grid) -> DatasetReader:
        """Return the reader of these fields, which are all on one grid."""
        return DatasetReader(grid, self.blocks, self.rows["block"].copy(), self.rows["field"].copy())
