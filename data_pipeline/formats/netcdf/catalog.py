"""The fields of the wanted variables in many NetCDF files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import Paths, expand_paths
from data_pipeline.formats.catalog import SINGLE, listed
from data_pipeline.formats.netcdf.block import Block, Refused
from data_pipeline.formats.netcdf.header import Header
from data_pipeline.formats.netcdf.names import Names
from data_pipeline.formats.netcdf.reader import BlockReader, Part
from data_pipeline.task import Variable

ROW = np.dtype(
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
"""One field: what it is, where it belongs, and which field of which block it is."""


def blocks_of(path: Path, names: Names) -> list[Block | Refused]:
    """Return the variables of a file that lie on the globe, those that cannot be read with the reason."""
    header = Header.of(path)
    found = [block for entry in header.entries if (block := Block.of(header, entry, names))]
    if not found:
        has = ", ".join(entry.name for entry in header.entries) or "no variable but coordinates"
        raise InputError(f"{path} has no variable on latitudes and longitudes; it has {has}")
    _refuse_two_of_a_name([block for block in found if isinstance(block, Block)])
    return found


@dataclass(frozen=True, eq=False)
class BlockCatalog:
    """Fields of the `wanted` variables, one row for each, in the order of the files: a `Catalog`."""

    paths: tuple[Path, ...]
    wanted: tuple[Variable, ...]
    blocks: tuple[Block, ...]
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
        """Find the fields of `variables`; with None, of all (only at the `surface`). `timeless` passes dates over."""
        files = tuple(expand_paths(paths))
        blocks: list[Block] = []
        refused: list[Refused] = []
        file_of: list[int] = []
        said = Names(names)
        for file, path in enumerate(files):
            for block in blocks_of(path, said):
                if isinstance(block, Refused):
                    refused.append(block)
                else:
                    blocks.append(block)
                    file_of.append(file)
        wanted = _wanted(listed(files), blocks, refused, variables, surface)
        used = [(block, file) for block, file in zip(blocks, file_of, strict=True) if set(block.variables) & {*wanted}]
        rows = [_rows(block, file, k, wanted, timeless) for k, (block, file) in enumerate(used)]
        return cls(files, wanted, tuple(block for block, _ in used), np.concatenate(rows))

    def __str__(self) -> str:
        return listed(self.paths)

    def where(self, condition: np.ndarray) -> BlockCatalog:
        """Return only the fields for which `condition` holds."""
        return replace(self, rows=self.rows[condition])

    def place(self, row: int) -> str:
        """Return where a field stands, in words: its position along each dimension."""
        block = self.blocks[self.rows["block"][row]]
        size = dict(zip(block.entry.dimensions, block.entry.shape, strict=True))
        position = (
            np.unravel_index(self.rows["field"][row], [size[name] for name in block.outer]) if block.outer else ()
        )
        at = ", ".join(f"{name} {k}" for name, k in zip(block.outer, position, strict=True))
        return f"{block.header.file.path} ({block.entry.name}{f' at {at}' if at else ''})"

    def units(self, name: str) -> tuple[str, str]:
        """Return units and long name of the variables called `name`; their files must agree on the units."""
        words = {}
        for block in self.blocks:
            if block.short_name == name:
                words[block.words[0]] = block.words[1]
        if len(words) > 1:
            raise InputError(f"{self} has {name} in {' and in '.join(sorted(words))}; name files that agree")
        (found,) = words.items()
        return found

    def refuse_contradiction(self, first: int, second: int) -> None:
        """Refuse two fields for one place, unless their values are the same."""
        grid, window = self.source.grid, (slice(None), slice(None))
        one, other = np.empty((2, 1, *grid.shape), SINGLE)
        for row, out in ((first, one), (second, other)):
            self.source.read(np.array([row]), out, window)
        if not np.array_equal(one, other, equal_nan=True):
            what = self.wanted[self.rows["variable"][first]]
            raise InputError(
                f"{self.place(first)} and {self.place(second)} both hold {what} for the same time and member, with "
                "different values; keep one of them, or number the members, for "
                "instance with ncap2 -s 'number=3'"
            )

    def refuse_unknown_starts(self) -> None:
        """Refuse fields that have a valid time but no start."""
        for block in self.blocks:
            if not block.clock.forecasts:
                raise InputError(
                    f"{block} says when its fields are valid but not when the forecasts started; add a coordinate "
                    "forecast_reference_time or forecast_period, for instance with ncap2 of NCO"
                )

    @cached_property
    def source(self) -> BlockReader:
        """These fields as something to read from; all must lie on one regular grid."""
        first = self.blocks[0]
        for block in self.blocks:
            if not block.horizontal.grid.matches(first.horizontal.grid):
                raise InputError(
                    f"{first} is on {first.horizontal.grid}, {block} on {block.horizontal.grid}; "
                    "name variables and files on one grid"
                )
        parts = tuple(_part(block) for block in self.blocks)
        return BlockReader(first.horizontal.grid, parts, self.rows["block"].copy(), self.rows["field"].copy())


def _part(block: Block) -> Part:
    entry = block.entry
    size = dict(zip(entry.dimensions, entry.shape, strict=True))
    shape = tuple(size[name] for name in block.outer)
    return Part(
        block.header.file,
        entry.name,
        entry.dimensions,
        block.outer,
        shape,
        *block.across,
        block.horizontal,
        block.scale,
    )


def _rows(block: Block, file: int, number: int, wanted: Sequence[Variable], timeless: bool) -> np.ndarray:
    """Return one row for each wanted field of a block."""
    rows = np.zeros(len(block.levels), ROW)
    rows["variable"] = -1
    for k, variable in enumerate(wanted):
        if variable.name == block.short_name:
            rows["variable"][block.levels == variable.level] = k
    if not timeless:
        rows["init"], rows["step"] = block.times
        rows["number"] = block.numbers
    rows["file"], rows["block"], rows["field"] = file, number, np.arange(len(rows))
    return rows[rows["variable"] >= 0]


def _refuse_two_of_a_name(blocks: Sequence[Block]) -> None:
    """Refuse a file in which two variables may be the same one."""
    found: dict[Variable | None, Block] = {}
    for block in blocks:
        for variable in block.variables:
            other = found.setdefault(variable, block)
            if variable and other is not block:
                one, two = other.entry.name, block.entry.name
                raise InputError(
                    f"{block.header.file.path}: {one} and {two} may both be {variable}; give one of them another "
                    f"name, for instance with data.archive.names={{{two}: other}}"
                )


def _wanted(
    files: str,
    blocks: Sequence[Block],
    refused: Sequence[Refused],
    variables: Iterable[Variable] | None,
    surface: bool,
) -> tuple[Variable, ...]:
    """Return the variables wanted, each once; those that are named must be there."""
    there = {variable for block in blocks for variable in block.variables if variable}
    if variables is None:
        return _everything(files, blocks, refused, there, surface)
    wanted = tuple(dict.fromkeys(variables))
    if not wanted:
        raise InputError(f"no variable of {files} was named; name at least one, such as 2t or t@850")
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
    files: str, blocks: Sequence[Block], refused: Sequence[Refused], there: set[Variable], surface: bool
) -> tuple[Variable, ...]:
    """Return all variables; those aloft on every pressure level that any of them has."""
    if refused and not (surface and any(not variable.level for variable in there)):
        raise InputError(refused[0].reason)
    wanted = {variable for variable in there if not variable.level}
    if not surface:
        if nameless := [block for block in blocks if None in block.variables]:
            raise InputError(
                f"{files} has {nameless[0].short_name} on levels that are no whole number of hPa; "
                "name the variables that you want"
            )
        aloft = {variable.name for variable in there if variable.level}
        levels = {variable.level for variable in there if variable.level}
        wanted |= {Variable(name, level) for name, level in product(aloft, levels)}
    if not wanted:
        raise InputError(
            f"{files} has no fields at the surface but {', '.join(map(str, sorted(there)))}; name other files"
        )
    return tuple(sorted(wanted))
