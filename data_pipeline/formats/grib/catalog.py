"""MessageCatalog: the messages of the requested variables in many GRIB files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import Paths, expand_paths
from data_pipeline.formats.catalog import describe_files
from data_pipeline.formats.grib import cfgrib_reader
from data_pipeline.formats.grib.audit import difference
from data_pipeline.formats.grib.cache import tables_of
from data_pipeline.formats.grib.packing import decodable
from data_pipeline.formats.grib.reader import LOCATION, MessageReader
from data_pipeline.formats.grib.scan import read_message
from data_pipeline.formats.grib.table import RECORD, Kind, Stamp
from data_pipeline.formats.variables import all_variables, requested_variables
from data_pipeline.task import Variable

ROW = np.dtype([*RECORD.descr, ("file", "i4"), ("variable", "i4")])
"""A record of a table, with the positions of its file in `paths` and of its variable in `wanted`."""


@dataclass(frozen=True, eq=False)
class MessageCatalog:
    """Messages of the `wanted` variables in several files, one row each, in the order of the files: a `Catalog`.

    A row's `kind` is its position in `kinds`, which holds the kinds of all files.
    """

    paths: tuple[Path, ...]
    stamps: tuple[Stamp, ...]
    kinds: tuple[Kind, ...]
    wanted: tuple[Variable, ...]
    rows: np.ndarray

    @classmethod
    def gather(cls, paths: Paths, variables: Sequence[Variable] | None, *, surface: bool = False) -> MessageCatalog:
        """Find the messages of `variables`; with None, of all variables, or of all at the `surface`."""
        files = expand_paths(paths)
        number_of: dict[Kind, int] = {}
        parts, stamps = [], []
        for file, table in enumerate(tables_of(files)):
            # Keep only the requested messages of each file, to limit memory: an archive has many more.
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
        wanted = _wanted(describe_files(files), kinds, variables, surface)
        variable_of = np.array([wanted.index(k.variable) if k.variable in wanted else -1 for k in kinds])
        rows = np.concatenate(parts)
        parts.clear()
        rows["variable"] = variable_of[rows["kind"]]
        if variables is None:
            rows = rows[rows["variable"] >= 0]
        if len(by_cfgrib := np.unique(rows["file"][rows["field"] > 0])):
            cfgrib_reader.warn(describe_files([files[k] for k in by_cfgrib]))
        return cls(tuple(files), tuple(stamps), kinds, wanted, rows)

    def __str__(self) -> str:
        return describe_files(self.paths)

    def where(self, condition: np.ndarray) -> MessageCatalog:
        """Return a catalog of the messages for which `condition` holds."""
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
        """Return the file and byte of a message, for error messages."""
        return f"{self.paths[self.rows['file'][row]]} (byte {self.rows['offset'][row]})"

    def refuse_contradiction(self, first: int, second: int) -> None:
        """Raise `InputError` for two messages of one place, unless they are equal byte for byte."""
        one, other = self._message(first), self._message(second)
        if one == other:
            return
        what = self.wanted[self.rows["variable"][first]]
        raise InputError(
            f"{self.place(first)} and {self.place(second)} both hold {what} for the same time and member; they differ "
            f"in {difference(one, other)}; keep one of them, for instance with ecCodes' grib_copy"
        )

    @cached_property
    def reader(self) -> MessageReader:
        """The reader of these messages; all must lie on one regular grid."""
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
        locations = np.empty(len(self.rows), LOCATION)
        for name in ("file", "offset", "length", "field", "data", "bits", "reference", "binary", "decimal"):
            locations[name] = self.rows[name]
        packing = [self.rows[name] for name in ("bits", "reference", "binary", "decimal")]
        locations["bits"][~decodable(*packing)] = -1
        locations["layout"] = layout_of[self.rows["kind"]]
        return MessageReader(self.paths, self.stamps, layouts, locations)

    def _message(self, row: int) -> bytes:
        """Return the bytes of a message."""
        path = self.paths[self.rows["file"][row]]
        position = [int(self.rows[name][row]) for name in ("offset", "length", "field")]
        with path.open("rb", buffering=0) as file:
            return read_message(file.fileno(), path, *position)


def _wanted(
    files: str, kinds: Iterable[Kind], variables: Iterable[Variable] | None, surface: bool
) -> tuple[Variable, ...]:
    """Return the requested variables, which must be in the files, or all variables."""
    found = {kind.variable for kind in kinds if kind.variable}
    if variables is not None:
        wanted = requested_variables(files, variables)
        if missing := [variable for variable in wanted if variable not in found]:
            raise InputError(f"{files} has no {', '.join(map(str, missing))}; it has {_names(kinds)}")
        return wanted
    if not surface and (unnamed := [kind for kind in kinds if not kind.variable]):
        raise InputError(
            f"{files} has {unnamed[0]}, which is neither at the surface nor on a whole number of hPa; "
            "name the variables to read"
        )
    wanted = all_variables(found, surface=surface)
    if not wanted:
        raise InputError(f"{files} has no fields at the surface but {_names(kinds)}; name other files")
    return wanted


def _names(kinds: Iterable[Kind]) -> str:
    return ", ".join(dict.fromkeys(map(str, sorted(kinds, key=lambda kind: (kind.short_name, kind.level)))))
