"""Gather the messages of the wanted variables from many files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import Paths, expand_paths
from data_pipeline.formats.catalog import listed
from data_pipeline.formats.grib.cache import tables_of
from data_pipeline.formats.grib.compare import difference
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.packing import decodable
from data_pipeline.formats.grib.reader import PLACE, MessageReader
from data_pipeline.formats.grib.scan import read
from data_pipeline.formats.grib.table import RECORD, Stamp
from data_pipeline.task import Variable

ROW = np.dtype([*RECORD.descr, ("file", "i4"), ("variable", "i4")])
"""A record of a table, with the file it is in and its place among the variables wanted."""


@dataclass(frozen=True, eq=False)
class MessageCatalog:
    """MessageCatalog in several files that hold one of the `wanted` variables, one row for each.

    Rows stand in the order of the files, then of the bytes. `kind` counts among the kinds of all files.
    """

    paths: tuple[Path, ...]
    stamps: tuple[Stamp, ...]
    kinds: tuple[Kind, ...]
    wanted: tuple[Variable, ...]
    rows: np.ndarray

    @classmethod
    def gather(cls, paths: Paths, variables: Sequence[Variable] | None, *, surface: bool = False) -> MessageCatalog:
        """Find the messages of `variables`; with None, of all variables (only at the `surface`)."""
        files = expand_paths(paths)
        number_of: dict[Kind, int] = {}
        parts, stamps = [], []
        for file, table in enumerate(tables_of(files)):
            # Only what is wanted is kept of each file: an archive has many more messages.
            numbers = np.array([number_of.setdefault(kind, len(number_of)) for kind in table.kinds])
            keep = np.array([variables is None or kind.variable in variables for kind in table.kinds])
            records = table.records[keep[table.records["kind"]]]
            rows = np.empty(len(records), ROW)
            for name in RECORD.names or ():
                rows[name] = records[name]
            rows["kind"] = numbers[records["kind"]]
            rows["file"] = file
            parts.append(rows)
            stamps.append(table.stamp)
        kinds = tuple(number_of)
        wanted = _there(listed(files), kinds, variables, surface)
        variable_of = np.array([wanted.index(k.variable) if k.variable in wanted else -1 for k in kinds])
        rows = np.concatenate(parts)
        parts.clear()
        rows["variable"] = variable_of[rows["kind"]]
        # Of named variables, nothing else is there by now.
        return cls(
            tuple(files), tuple(stamps), kinds, wanted, rows[rows["variable"] >= 0] if variables is None else rows
        )

    def __str__(self) -> str:
        return listed(self.paths)

    def where(self, condition: np.ndarray) -> MessageCatalog:
        """Return only the messages for which `condition` holds."""
        return replace(self, rows=self.rows[condition])

    def units(self, name: str) -> tuple[str, str]:
        """Return units and long name of the variables called `name`; its messages must agree on the units."""
        kinds = [kind for kind in self.kinds if kind.variable in self.wanted and kind.short_name == name]
        names = {kind.units: kind.long_name for kind in kinds}
        if len(names) > 1:
            raise InputError(f"{self} has {name} in {' and in '.join(sorted(names))}; name files that agree")
        (found,) = names.items()
        return found

    def place(self, row: int) -> str:
        """Return where a message stands, in words."""
        return f"{self.paths[self.rows['file'][row]]} (byte {self.rows['offset'][row]})"

    def _message(self, row: int) -> bytes:
        """Return the bytes of a message."""
        path = self.paths[self.rows["file"][row]]
        with path.open("rb", buffering=0) as file:
            return read(file.fileno(), path, int(self.rows["offset"][row]), int(self.rows["length"][row]))

    def refuse_contradiction(self, first: int, second: int) -> None:
        """Refuse two messages for one place, unless they are the same byte for byte."""
        one, other = self._message(first), self._message(second)
        if one == other:
            return
        what = self.wanted[self.rows["variable"][first]]
        raise InputError(
            f"{self.place(first)} and {self.place(second)} both hold {what} for the same time and member; they differ "
            f"in {difference(one, other)}; keep one of them, for instance with ecCodes' grib_copy"
        )

    @cached_property
    def source(self) -> MessageReader:
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
        for name in ("file", "offset", "length", "data", "bits", "reference", "binary", "decimal"):
            places[name] = self.rows[name]
        packing = [self.rows[name] for name in ("bits", "reference", "binary", "decimal")]
        places["bits"][~decodable(*packing)] = -1
        places["layout"] = layout_of[self.rows["kind"]]
        return MessageReader(self.paths, self.stamps, layouts, places)


def _there(
    files: str, kinds: Iterable[Kind], variables: Iterable[Variable] | None, surface: bool
) -> tuple[Variable, ...]:
    """Return the variables wanted, each once; those that are named must be there."""
    if variables is None:
        return _everything(files, kinds, surface)
    wanted = tuple(dict.fromkeys(variables))
    if not wanted:
        raise InputError(f"no variable of {files} was requested; name at least one, such as 2t or t@850")
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
