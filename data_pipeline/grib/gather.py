"""Gather the messages of the wanted variables from many files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np

from data_pipeline.errors import InputError
from data_pipeline.grib.cache import table_of
from data_pipeline.grib.fields import PLACE, Source
from data_pipeline.grib.paths import Paths, expand
from data_pipeline.grib.scan import read
from data_pipeline.grib.table import RECORD, Kind, common_kinds
from data_pipeline.task import Variable

ROW = np.dtype([*RECORD.descr, ("file", "i4"), ("variable", "i4")])
"""A record of a table, with the file it is in and its place among the variables wanted."""


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages in several files that hold one of the `wanted` variables, one row for each.

    Rows stand in the order of the files, then of the bytes. `kind` counts among the kinds of all files.
    """

    paths: tuple[Path, ...]
    kinds: tuple[Kind, ...]
    wanted: tuple[Variable, ...]
    rows: np.ndarray

    @classmethod
    def gather(cls, paths: Paths, variables: Sequence[Variable] | None, surface: bool = False) -> Messages:
        """Find the messages of `variables`; with None, of all variables (only at the `surface`)."""
        files = expand(paths)
        tables = [table_of(path) for path in files]
        kinds, kind_of = common_kinds(tables)
        wanted = _there(_list(files), kinds, variables, surface)
        variable_of = np.array([wanted.index(k.variable) if k.variable in wanted else -1 for k in kinds])
        parts = []
        for file, table in enumerate(tables):
            rows = np.empty(len(table.records), ROW)
            for name in RECORD.names or ():
                rows[name] = table.records[name]
            rows["kind"] = kind_of[file]
            rows["file"] = file
            rows["variable"] = variable_of[rows["kind"]]
            parts.append(rows[rows["variable"] >= 0])
        return cls(tuple(files), kinds, wanted, np.concatenate(parts))

    def __str__(self) -> str:
        return _list(self.paths)

    def where(self, condition: np.ndarray) -> Messages:
        """Return only the messages for which `condition` holds."""
        return replace(self, rows=self.rows[condition])

    def place(self, row: int) -> str:
        """Return where a message stands, in words."""
        return f"{self.paths[self.rows['file'][row]]} (byte {self.rows['offset'][row]})"

    def message(self, row: int) -> bytes:
        """Return the bytes of a message."""
        path = self.paths[self.rows["file"][row]]
        with path.open("rb", buffering=0) as file:
            return read(file.fileno(), path, int(self.rows["offset"][row]), int(self.rows["length"][row]))

    @cached_property
    def source(self) -> Source:
        """These messages as something to read fields from; all must lie on one regular grid."""
        kinds, first = np.unique(self.rows["kind"], return_index=True)
        layouts = tuple(dict.fromkeys(self.kinds[k].layout for k in kinds))
        grids = []
        for k, row in zip(kinds, first, strict=True):
            try:
                grids.append(self.kinds[k].layout.grid)
            except InputError as error:
                raise InputError(f"{self.place(row)}: {self.kinds[k]}: {error}") from None
            if not grids[0].matches(grids[-1]):
                raise InputError(
                    f"{self.place(first[0])} has {self.kinds[kinds[0]]} on {grids[0]}, {self.place(row)} has "
                    f"{self.kinds[k]} on {grids[-1]}; name variables and files on one grid"
                )
        layout_of = np.full(len(self.kinds), -1)
        layout_of[kinds] = [layouts.index(self.kinds[k].layout) for k in kinds]
        places = np.empty(len(self.rows), PLACE)
        for name in ("file", "offset", "length"):
            places[name] = self.rows[name]
        places["layout"] = layout_of[self.rows["kind"]]
        return Source(self.paths, layouts, places)


def _there(
    files: str, kinds: Iterable[Kind], variables: Iterable[Variable] | None, surface: bool
) -> tuple[Variable, ...]:
    """Return the variables wanted, each once; those that are named must be there."""
    if variables is None:
        return _everything(files, kinds, surface)
    wanted = tuple(dict.fromkeys(variables))
    if not wanted:
        raise InputError(f"no variable of {files} was named; name at least one, such as 2t or t@850")
    there = {kind.variable for kind in kinds}
    if missing := [variable for variable in wanted if variable not in there]:
        raise InputError(f"{files} has no {', '.join(map(str, missing))}; it has {_names(kinds)}")
    return wanted


def _everything(files: str, kinds: Iterable[Kind], surface: bool) -> tuple[Variable, ...]:
    """Return all variables; those aloft on every pressure level that any of them has."""
    found = [kind.variable for kind in kinds if kind.variable]
    wanted = {variable for variable in found if not variable.level}
    if not surface:
        if nameless := [kind for kind in kinds if not kind.variable]:
            raise InputError(
                f"{files} has {nameless[0]}, which is neither at the surface nor on a whole number of hPa; "
                "name the variables that you want"
            )
        names = {variable.name for variable in found if variable.level}
        levels = {variable.level for variable in found if variable.level}
        wanted |= {Variable(name, level) for name, level in product(names, levels)}
    if not wanted:
        raise InputError(f"{files} has no fields at the surface but {_names(kinds)}; name other files")
    return tuple(sorted(wanted))


def _names(kinds: Iterable[Kind]) -> str:
    return ", ".join(dict.fromkeys(map(str, sorted(kinds, key=lambda kind: (kind.short_name, kind.level)))))


def _list(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
