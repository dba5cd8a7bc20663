"""Catalog of the fields of the wanted variables in many NetCDF files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import Paths, expand_paths
from data_pipeline.formats.catalog import SINGLE, describe_files
from data_pipeline.formats.netcdf.block import FieldBlock, RefusedVariable
from data_pipeline.formats.netcdf.header import Header
from data_pipeline.formats.netcdf.reader import BlockLayout, BlockReader
from data_pipeline.formats.netcdf.variables import NameMap
from data_pipeline.formats.variables import all_variables, requested_variables
from data_pipeline.task import Variable

_ROW = np.dtype(
    [
        ("variable", "i4"),
        ("file", "i4"),
        ("init", "i8"),
        ("step", "i4"),
        ("number", "i4"),
        ("block", "i4"),
        ("field", "i8"),
    ]
)
"""One field: variable, file, time, member, and its position in a block."""


def read_blocks(path: Path, names: NameMap) -> list[FieldBlock | RefusedVariable]:
    """Return the variables of a file that have latitudes and longitudes; for unreadable ones, the reason."""
    header = Header.of(path)
    found = [block for data in header.variables if (block := FieldBlock.of(header, data, names))]
    if not found:
        has = ", ".join(data.name for data in header.variables) or "coordinates only"
        raise InputError(f"{path} has no variable on latitudes and longitudes; it has {has}; check the path")
    _refuse_duplicates([block for block in found if isinstance(block, FieldBlock)])
    return found


@dataclass(frozen=True, eq=False)
class BlockCatalog:
    """The fields of the `wanted` variables, one row each, in the order of the files; implements `Catalog`."""

    paths: tuple[Path, ...]
    wanted: tuple[Variable, ...]
    blocks: tuple[FieldBlock, ...]
    rows: np.ndarray

    @classmethod
    def gather(
        cls,
        paths: Paths,
        variables: Sequence[Variable] | None,
        names: Mapping[str, str] | None,
        surface: bool = False,
        timeless: bool = False,
    ) -> BlockCatalog:
        """Find the fields of `variables` (None: all, or all at the `surface`); `timeless` ignores their dates."""
        files = tuple(expand_paths(paths))
        blocks: list[FieldBlock] = []
        refused: list[RefusedVariable] = []
        file_of: list[int] = []
        name_map = NameMap(names)
        for file, path in enumerate(files):
            for block in read_blocks(path, name_map):
                if isinstance(block, RefusedVariable):
                    refused.append(block)
                else:
                    blocks.append(block)
                    file_of.append(file)
        wanted = _wanted(describe_files(files), blocks, refused, variables, surface)
        used = [(block, file) for block, file in zip(blocks, file_of, strict=True) if set(block.variables) & {*wanted}]
        rows = [_rows(block, file, k, wanted, timeless) for k, (block, file) in enumerate(used)]
        return cls(files, wanted, tuple(block for block, _ in used), np.concatenate(rows))

    def __str__(self) -> str:
        return describe_files(self.paths)

    def where(self, condition: np.ndarray) -> BlockCatalog:
        """Return only the fields for which `condition` holds."""
        return replace(self, rows=self.rows[condition])

    def place(self, row: int) -> str:
        """Return file, variable and the position along each dimension of a field, for messages."""
        block = self.blocks[self.rows["block"][row]]
        size = dict(zip(block.data.dimensions, block.data.shape, strict=True))
        position = (
            np.unravel_index(self.rows["field"][row], [size[name] for name in block.outer]) if block.outer else ()
        )
        at = ", ".join(f"{name} {k}" for name, k in zip(block.outer, position, strict=True))
        return f"{block.header.file.path} ({block.data.name}{f' at {at}' if at else ''})"

    def units(self, name: str) -> tuple[str, str]:
        """Return units and long name of the variables called `name`; different units raise an `InputError`."""
        found = {}
        for block in self.blocks:
            if block.short_name == name:
                units, long_name = block.units_and_long_name
                found[units] = long_name
        if len(found) > 1:
            raise InputError(f"{self} has {name} in {' and in '.join(sorted(found))}; select files with the same units")
        (pair,) = found.items()
        return pair

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

    def refuse_unknown_starts(self) -> None:
        """Raise an `InputError` if fields have a valid time but no start."""
        for block in self.blocks:
            if not block.time.has_leads:
                raise InputError(
                    f"{block} has valid times but no start of the forecasts; add a coordinate "
                    "forecast_reference_time or forecast_period, for instance with ncap2 of NCO"
                )

    @cached_property
    def reader(self) -> BlockReader:
        """The reader of these fields; an `InputError` if they are on different grids."""
        first = self.blocks[0]
        for block in self.blocks:
            if not block.horizontal.grid.matches(first.horizontal.grid):
                raise InputError(
                    f"{first} is on {first.horizontal.grid}, {block} on {block.horizontal.grid}; "
                    "select variables and files on one grid"
                )
        layouts = tuple(_layout(block) for block in self.blocks)
        return BlockReader(first.horizontal.grid, layouts, self.rows["block"].copy(), self.rows["field"].copy())


def _layout(block: FieldBlock) -> BlockLayout:
    data = block.data
    size = dict(zip(data.dimensions, data.shape, strict=True))
    shape = tuple(size[name] for name in block.outer)
    return BlockLayout(
        block.header.file,
        data.name,
        data.dimensions,
        block.outer,
        shape,
        *block.across,
        block.horizontal,
        block.conversion,
    )


def _rows(block: FieldBlock, file: int, number: int, wanted: Sequence[Variable], timeless: bool) -> np.ndarray:
    """Return one row for each wanted field of a block."""
    rows = np.zeros(len(block.levels), _ROW)
    rows["variable"] = -1
    for k, variable in enumerate(wanted):
        if variable.name == block.short_name:
            rows["variable"][block.levels == variable.level] = k
    if not timeless:
        rows["init"], rows["step"] = block.times
        rows["number"] = block.numbers
    rows["file"], rows["block"], rows["field"] = file, number, np.arange(len(rows))
    return rows[rows["variable"] >= 0]


def _refuse_duplicates(blocks: Sequence[FieldBlock]) -> None:
    """Raise an `InputError` if two variables of a file could be the same variable."""
    found: dict[Variable | None, FieldBlock] = {}
    for block in blocks:
        for variable in block.variables:
            other = found.setdefault(variable, block)
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
    """Return the wanted variables, each once; an `InputError` if one of them is missing."""
    there = {variable for block in blocks for variable in block.variables if variable}
    if variables is None:
        return _everything(files, blocks, refused, there, surface)
    wanted = requested_variables(files, variables)
    if missing := [variable for variable in wanted if variable not in there]:
        names = {variable.name for variable in missing}
        for other in refused:
            if other.short_name in names:
                raise InputError(other.reason)
        if not there and refused:
            raise InputError(refused[0].reason)
        raise InputError(f"{files} has no {', '.join(map(str, missing))}; it has {', '.join(map(str, sorted(there)))}")
    return wanted


def _everything(
    files: str, blocks: Sequence[FieldBlock], refused: Sequence[RefusedVariable], there: set[Variable], surface: bool
) -> tuple[Variable, ...]:
    """Return all variables. Variables with levels get every pressure level that occurs in the files."""
    if refused and not (surface and any(not variable.level for variable in there)):
        raise InputError(refused[0].reason)
    if not surface and (unnamed := [block for block in blocks if None in block.variables]):
        raise InputError(
            f"{files} has {unnamed[0].short_name} on levels that are not whole numbers of hPa; "
            "select the variables by name"
        )
    wanted = all_variables(there, surface=surface)
    if not wanted:
        raise InputError(
            f"{files} has no fields at the surface, only {', '.join(map(str, sorted(there)))}; select other files"
        )
    return wanted
