"""Catalog of the fields of the wanted variables in many CF files; NetCDF and Zarr each have a subclass."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from data_pipeline.common.errors import AbsentVariableError, InputError
from data_pipeline.common.files import FileAddress, Paths, expand_addresses
from data_pipeline.common.messages import joined, say_once, warn_once
from data_pipeline.formats.catalog import SINGLE, Summary, describe_files
from data_pipeline.formats.cf.block import FieldBlock, RefusedVariable
from data_pipeline.formats.cf.cf_header import Header
from data_pipeline.formats.cf.cf_variables import NameMap
from data_pipeline.formats.cf.summaries import interpret_summary
from data_pipeline.formats.loaded import LoadedReader
from data_pipeline.formats.selected_points import PointReader
from data_pipeline.formats.variables import all_variables, requested_variables
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.protocols import FieldReader
from data_pipeline.task import Variable

_ROW = np.dtype(
    [
        ("variable", "i4"), ("file", "i4"), ("init", "i8"), ("step", "i4"), ("interval", "i4"), ("number", "i4"),
        ("block", "i4"), ("field", "i8"),
    ]
)  # fmt: skip
"""One field: variable, file, time, member, and its position in a block."""


@dataclass(frozen=True, eq=False)
class BlockCatalog(ABC):
    """The fields of the `wanted` variables, one row each, in the order of the files; implements `Catalog`.

    A subclass for a format implements `header_of`, which reads a header, and `reader_on`, which reads values.
    """

    paths: tuple[FileAddress, ...]
    wanted: tuple[Variable, ...]
    blocks: tuple[FieldBlock, ...]
    rows: np.ndarray

    @staticmethod
    @abstractmethod
    def header_of(path: FileAddress) -> Header:
        """Read the header of a file."""

    @abstractmethod
    def reader_on(self, grid: Grid) -> FieldReader:
        """Return the reader of these fields, which are all on one grid."""

    @classmethod
    def read_blocks(
        cls, path: FileAddress, names: NameMap, timeless: bool = False, summaries: bool = False
    ) -> list[FieldBlock | RefusedVariable]:
        """Return the variables of a file that have latitudes and longitudes; unreadable ones with the reason.

        `timeless` ignores their processing over time. With `summaries`, those of `cf.summaries` are read, too.
        """
        header = cls.header_of(path)
        _refuse_ragged(path, header)
        found = cls.blocks_of(header, names, timeless, summaries)
        if not found:
            has = ", ".join(data.name for data in header.variables) or "coordinates only"
            raise InputError(f"{path} has no variable on latitudes and longitudes; it has {has}; check the path")
        _refuse_duplicates([block for block in found if isinstance(block, FieldBlock)])
        return found

    @classmethod
    def blocks_of(
        cls, header: Header, names: NameMap, timeless: bool, summaries: bool
    ) -> list[FieldBlock | RefusedVariable]:
        """Return the variables that have latitudes and longitudes."""
        interpret = interpret_summary if summaries else FieldBlock.of
        return [block for data in header.variables if (block := interpret(header, data, names, timeless))]

    @classmethod
    def gather(
        cls,
        paths: Paths,
        variables: Sequence[Variable] | None,
        names: Mapping[str, str] | None,
        static: bool = False,
        summaries: bool = False,
    ) -> Self:
        """Find the fields of `variables`; with None, all fields, or the `static` ones: at the surface, at any time."""
        files = tuple(expand_addresses(paths))
        blocks: list[FieldBlock] = []
        refused: list[RefusedVariable] = []
        file_of: list[int] = []
        name_map = NameMap(names)
        for file, path in enumerate(files):
            for block in cls.read_blocks(path, name_map, static, summaries):
                if isinstance(block, RefusedVariable):
                    refused.append(block)
                else:
                    blocks.append(block)
                    file_of.append(file)
        wanted = _wanted(describe_files(files), blocks, refused, variables, static)
        _tell_left_out(describe_files(files), wanted, refused)
        used = [(block, file) for block, file in zip(blocks, file_of, strict=True) if set(block.variables) & {*wanted}]
        rows, stored = [], []
        for k, (block, file) in enumerate(used):
            rows.append(_rows(block, file, k, wanted, static))
            stored.append(block.stored[rows[-1]["field"]])
        fields, exist = np.concatenate(rows), np.concatenate(stored)
        if many := sum(block.percentiles.size > 0 for block, _ in used):
            say_once(f"{describe_files(files)}: percentiles of {many} variables are read as members")
        _tell_unwritten(describe_files(files), wanted, fields, exist)
        return cls(files, wanted, tuple(block for block, _ in used), fields[exist])

    @classmethod
    def first_grid(cls, path: FileAddress, names: Mapping[str, str] | None) -> Grid:
        """Return the grid of the first variable of a file that can be read."""
        blocks = cls.read_blocks(path, NameMap(names))
        refusals = [block.reason for block in blocks if isinstance(block, RefusedVariable)]
        grids = [block.horizontal.grid for block in blocks if isinstance(block, FieldBlock)]
        if not grids:
            raise InputError(refusals[0])
        return grids[0]

    def __str__(self) -> str:
        return describe_files(self.paths)

    def where(self, condition: np.ndarray) -> Self:
        """Return only the fields for which `condition` holds."""
        return replace(self, rows=self.rows[condition])

    @property
    def summaries(self) -> np.ndarray:
        """The `Summary` of each field as text; empty for members."""
        found: np.ndarray = np.array([block.summary for block in self.blocks])[self.rows["block"]]
        return found

    def place(self, row: int) -> str:
        """Return file, variable and the position along each dimension of a field, for messages."""
        block = self.blocks[self.rows["block"][row]]
        position = np.unravel_index(self.rows["field"][row], block.shape) if block.outer else ()
        at = ", ".join(f"{name} {k}" for name, k in zip(block.outer, position, strict=True))
        return f"{block.header.file.path} ({block.data.name}{f' at {at}' if at else ''})"

    def units(self, name: str) -> tuple[str, str]:
        """Return units and long name of the variables called `name`; different units raise an `InputError`."""
        found = {}
        for block in self.blocks:
            if block.short_name in (name, Variable(name).parameter):
                units, long_name = block.units_and_long_name
                found[units] = long_name
        if len(found) > 1:
            raise InputError(f"{self} has {name} in {' and in '.join(sorted(found))}; select files with the same units")
        (pair,) = found.items()
        return pair

    def levels(self, rows: np.ndarray) -> Counter[str]:
        """Return the number of fields on each level, counting only `rows`."""
        found = Counter[str]()
        for k, count in zip(*np.unique(self.rows["block"][rows], return_counts=True), strict=True):
            found[self.blocks[k].level] += int(count)
        return found

    def refuse_contradiction(self, first: int, second: int) -> None:
        """Raise an `InputError` if two fields of the same variable, time and member have different values."""
        grid, window = self.reader.grid, (slice(None), slice(None))
        one, other = np.empty((2, 1, *grid.shape), SINGLE)
        for row, out in ((first, one), (second, other)):
            self.reader.read(np.array([row]), out, window)
        if not np.array_equal(one, other, equal_nan=True):
            what = self.wanted[self.rows["variable"][first]]
            raise InputError(
                f"{self.place(first)} and {self.place(second)} both hold {what} for the same time and member, with "
                "different values; keep one of them, or number the members, for "
                "instance with ncap2 -s 'number=3'"
            )

    def analyses(self) -> Self:
        """Return the fields that may be analyses."""
        return self

    def forecasts(self) -> Self:
        """Return the forecasts; an `InputError` if fields have a valid time but no start."""
        for block in self.blocks:
            if not block.time.has_leads:
                raise InputError(
                    f"{block} has valid times but no start of the forecasts; add a coordinate "
                    "forecast_reference_time or forecast_period, for instance with ncap2 of NCO"
                )
        return self

    @cached_property
    def reader(self) -> FieldReader:
        """The reader of these fields; an `InputError` if they are on different grids."""
        first = self.blocks[0]
        for block in self.blocks:
            own, other = first.horizontal.grid, block.horizontal.grid
            if isinstance(own, Points) and isinstance(other, Points) and own.ids and own.ids == other.ids:
                if moved := own.describe_moves(other):
                    say_once(f"{moved} between {first} and other files; its positions are used")
            elif not other.matches(own):
                raise InputError(
                    f"{first} is on {first.horizontal.grid}, {block} on {block.horizontal.grid}; "
                    "select variables and files on one grid"
                )
        grid, columns = first.horizontal.grid, len(first.horizontal.columns)
        reader = self.reader_on(grid)
        if not isinstance(grid, Points):
            return reader
        reader = PointReader(grid, reader, columns) if columns > 1 else reader
        return LoadedReader(reader, len(self.rows)) if LoadedReader.suits(grid, len(self.rows)) else reader


def _rows(block: FieldBlock, file: int, number: int, wanted: Sequence[Variable], timeless: bool) -> np.ndarray:
    rows = np.zeros(len(block.levels), _ROW)
    rows["variable"] = -1
    for k, variable in enumerate(wanted):
        if variable in block.variables:
            rows["variable"][block.fields_of(variable)] = k
    if not timeless:
        rows["init"], rows["step"], rows["interval"] = block.times[:3]
        rows["number"] = block.numbers
    rows["file"], rows["block"], rows["field"] = file, number, np.arange(len(rows))
    return rows[rows["variable"] >= 0]


def _refuse_ragged(path: FileAddress, header: Header) -> None:
    """Raise an `InputError` for a file that stores stations as a ragged array."""
    for data in header.variables:
        if data.attributes.keys() & {"sample_dimension", "instance_dimension"}:
            raise InputError(
                f"{path} holds stations as a ragged array ({data.name} counts or names the station of each value), "
                "which is not read; write it as an array (time, station) with NaN where a station has no value"
            )


def _tell_left_out(files: str, wanted: Sequence[Variable], refused: Sequence[RefusedVariable]) -> None:
    """Warn that some variables with the names of wanted ones cannot be read, such as means of the ensemble."""
    names = {variable.name for variable in wanted}
    if own := [one for one in refused if one.short_name in names and not one.product]:
        what = ", ".join(sorted({one.short_name for one in own}))
        warn_once(
            f"{files}: left out {len(own):,} variable{'s' * (len(own) > 1)} of {what}, because "
            f"{own[0].reason.rpartition('; ')[0] or own[0].reason}"
        )


def _tell_unwritten(files: str, wanted: Sequence[Variable], rows: np.ndarray, stored: np.ndarray) -> None:
    """Warn that some fields were never written and are missing.

    A variable whose fields were all never written raises an `InputError`.
    """
    if stored.all():
        return
    for k, variable in enumerate(wanted):
        mine = stored[rows["variable"] == k]
        if len(mine) and not mine.any():
            raise InputError(f"{files} has no values of {variable}: none of its {len(mine):,} fields was ever written")
    lost = rows[~stored][0]
    start = lost["init"].astype("datetime64[s]").astype("datetime64[m]")
    warnings.warn(
        f"{files}: {np.count_nonzero(~stored):,} of {len(stored):,} fields were never written and are missing, the "
        f"first is {wanted[lost['variable']]} of {start} + {lost['step'] / 60:g} h, member {lost['number']}",
        stacklevel=2,
    )


def _refuse_duplicates(blocks: Sequence[FieldBlock]) -> None:
    """Raise an `InputError` if two variables of a file could be the same variable."""
    found: dict[tuple[Variable | None, Summary], FieldBlock] = {}
    for block in blocks:
        for variable in block.variables:
            other = found.setdefault((variable, block.summary), block)
            if variable and other is not block:
                one, two = other.data.name, block.data.name
                raise InputError(
                    f"{block.header.file.path}: {one} and {two} could both be {variable}; rename one of them, "
                    f"for instance with data.archive.variable_names={{{two}: other}}"
                )


def _wanted(
    files: str,
    blocks: Sequence[FieldBlock],
    refused: Sequence[RefusedVariable],
    variables: Iterable[Variable] | None,
    surface: bool,
) -> tuple[Variable, ...]:
    """Return the wanted variables, without repetition, or all; an `InputError` if one of them is missing."""
    there = {variable for block in blocks for variable in block.variables if variable}
    has = joined(sorted(there))
    if variables is not None:
        wanted = requested_variables(files, variables, there)
        if missing := [variable for variable in wanted if variable not in there]:
            names = {variable.name for variable in missing}
            for other in refused:
                if other.short_name in names:
                    raise InputError(other.reason)
            if not there and refused:
                raise InputError(refused[0].reason)
            raise AbsentVariableError(f"{files} has no {joined(missing)}; it has {has}")
        return wanted
    refused = [one for one in refused if not (one.product and there)]
    if refused and not (surface and any(not variable.level for variable in there)):
        raise InputError(refused[0].reason)
    if not surface and (unnamed := [block for block in blocks if None in block.variables]):
        raise InputError(
            f"{files} has {unnamed[0].short_name} on levels that are not whole numbers of hPa; "
            "select the variables by name"
        )
    wanted = all_variables(there, surface=surface)
    if not wanted:
        raise InputError(f"{files} has no fields at the surface, only {has}; select other files")
    return wanted
