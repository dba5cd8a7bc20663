"""MessageCatalog: the messages of the requested variables in many GRIB files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import AbsentVariableError, InputError
from data_pipeline.common.files import Paths, expand_paths
from data_pipeline.common.messages import joined, say_once, warn_once
from data_pipeline.formats.catalog import MEAN, STD, describe_files
from data_pipeline.formats.equivalents import needed
from data_pipeline.formats.grib.audit import difference
from data_pipeline.formats.grib.cache import table_of, tables_of
from data_pipeline.formats.grib.grib_reader import LOCATION, MessageReader
from data_pipeline.formats.grib.kind import Kind, describe_left_out, find_conversions, wanted_units
from data_pipeline.formats.grib.names import MessageNames
from data_pipeline.formats.grib.packing import decodable
from data_pipeline.formats.grib.scan import read_message
from data_pipeline.formats.grib.table import RECORD, Stamp
from data_pipeline.formats.levels import level_text, with_axes
from data_pipeline.formats.variables import all_variables, requested_variables
from data_pipeline.grid import Grid
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import UNKNOWN
from data_pipeline.variables.units import Conversion

ROW = np.dtype([*RECORD.descr, ("file", "i4"), ("variable", "i4")])
"""A record of a table, with the positions of its file in `paths` and of its variable in `wanted`."""


@dataclass(frozen=True, eq=False)
class MessageCatalog:
    """Messages of the `wanted` variables in several files, one row each, in the order of the files: a `Catalog`.

    A row's `kind` is a position in `kinds`, which holds the kinds of all files. `variables` has the variable of each
    kind, `conversions` the conversion of its values to `units`.
    """

    paths: tuple[Path, ...]
    stamps: tuple[Stamp, ...]
    kinds: tuple[Kind, ...]
    variables: tuple[Variable | None, ...]
    conversions: tuple[Conversion, ...]
    wanted: tuple[Variable, ...]
    rows: np.ndarray

    @classmethod
    def gather(
        cls,
        paths: Paths,
        variables: Sequence[Variable] | None,
        names: Mapping[str, str] | None = None,
        *,
        surface: bool = False,
        summaries: bool = False,
    ) -> MessageCatalog:
        """Find the messages from which `variables` are made; with None, all variables, or all at the `surface`.

        `names` are the user's names, as in `MessageNames`. Messages that are not a forecast, member or analysis are
        left out; with `summaries`, means and standard deviations of ensembles are kept.
        """
        files, own_names = expand_paths(paths), MessageNames(names or {})
        candidates = None if variables is None else {each for variable in variables for each in needed(variable)}
        number_of: dict[Kind, int] = {}
        own: list[Variable | None] = []
        first_files: list[int] = []
        parts, stamps, left_out = [], [], Counter[Kind]()
        for file, table in enumerate(tables_of(files)):
            for kind in table.kinds:
                if number_of.setdefault(kind, len(own)) == len(own):
                    kept = replace(kind, product="") if summaries and kind.summary else kind
                    own.append(own_names.variable(kept))
                    first_files.append(file)
            # Keep only the requested messages of each file, to limit memory: an archive holds many others.
            numbers = np.array([number_of[kind] for kind in table.kinds])
            keep = np.array([own[k] is not None if candidates is None else own[k] in candidates for k in numbers])
            records = table.records[keep[table.records["kind"]]]
            rows = np.empty(len(records), ROW)
            for name in RECORD.names or ():
                rows[name] = records[name]
            rows["kind"] = numbers[records["kind"]]
            rows["file"] = file
            parts.append(rows)
            stamps.append(table.stamp)
            for k, kind in enumerate(table.kinds):
                if kind.left_out and own[number_of[kind]] is None:
                    left_out[kind] += int((table.records["kind"] == k).sum())
        kinds, described = tuple(number_of), describe_files(files)
        wanted = _wanted(described, kinds, own, left_out, variables, surface)
        own_left_out = {k: n for k, n in left_out.items() if k.short_name in {each.name for each in wanted}}
        if own_left_out:
            warn_once(
                f"{described}: left out {describe_left_out(own_left_out)}, which are no forecasts, members or analyses"
            )
        rows = np.concatenate(parts)
        parts.clear()
        rows["variable"] = np.array([wanted.index(v) if v in wanted else -1 for v in own])[rows["kind"]]
        rows = rows[rows["variable"] >= 0]
        _forget_unnamed_intervals(rows, kinds, own)
        _tell_turned_winds(described, rows, kinds, wanted)
        if len(by_cfgrib := np.unique(rows["file"][rows["field"] > 0])):
            warn_once(
                f"{describe_files([files[k] for k in by_cfgrib])} has GRIB2 messages that hold several "
                "fields; cfgrib reads these fields one at a time, which is slower than reading messages of one field; "
                "ecCodes' grib_copy writes one message per field"
            )
        places = [files[file] for file in first_files]
        conversions = [*find_conversions(kinds, [v if v in wanted else None for v in own], places)]
        for k, kind in enumerate(kinds):
            if kind.summary and own[k] is not None:
                rows["number"][rows["kind"] == k] = STD if kind.summary == "std" else MEAN
                conversions[k] = Conversion(conversions[k].factor) if kind.summary == "std" else conversions[k]
        return cls(tuple(files), tuple(stamps), kinds, tuple(own), tuple(conversions), wanted, rows)

    @classmethod
    def first_grid(cls, path: Path) -> Grid:
        """Return the grid of the first message of a file whose grid can be read."""
        kinds = table_of(path).kinds
        try:
            return next((kind.layout for kind in kinds if kind.layout.readable), kinds[0].layout).grid
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def __str__(self) -> str:
        return describe_files(self.paths)

    def where(self, condition: np.ndarray) -> MessageCatalog:
        """Return a catalog of the messages for which `condition` holds."""
        return replace(self, rows=self.rows[condition])

    def units(self, name: str) -> tuple[str, str]:
        """Return the units to which the values of variables called `name` are converted, and their long name."""
        kinds = zip(self.kinds, self.variables, strict=True)
        first = next(kind for kind, own in kinds if own in self.wanted and own.name == name)
        return wanted_units(first, name), first.long_name

    def levels(self, rows: np.ndarray) -> Counter[str]:
        """Return the number of messages on each level, counting only `rows`."""
        found = Counter[str]()
        for k, count in zip(*np.unique(self.rows["kind"][rows], return_counts=True), strict=True):
            kind, variable = self.kinds[k], self.variables[k]
            assert variable is not None
            level = level_text(variable, kind.type_of_level, kind.level, kind.bottom)
            plane = kind.layout.section
            found[with_axes(variable, level, kind.layout.along_grid if plane else None)] += int(count)
        return found

    @property
    def summaries(self) -> np.ndarray:
        """The `Summary` of each message as text; empty for members."""
        found: np.ndarray = np.array([kind.summary for kind in self.kinds])[self.rows["kind"]]
        return found

    def place(self, row: int) -> str:
        """Return the file and byte of a message, for error messages."""
        return f"{self.paths[self.rows['file'][row]]} (byte {self.rows['offset'][row]})"

    def refuse_contradiction(self, first: int, second: int) -> None:
        """Raise `InputError` if two messages of the same variable, time and member are not equal byte for byte."""
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
        conversions = tuple(dict.fromkeys(self.conversions[k] for k in kinds))
        conversion_of = np.full(len(self.kinds), -1)
        conversion_of[kinds] = [conversions.index(self.conversions[k]) for k in kinds]
        locations["conversion"] = conversion_of[self.rows["kind"]]
        packing = [self.rows[name] for name in ("bits", "reference", "binary", "decimal")]
        locations["bits"][~decodable(*packing)] = -1
        locations["layout"] = layout_of[self.rows["kind"]]
        return MessageReader(self.paths, self.stamps, layouts, conversions, locations)

    def _message(self, row: int) -> bytes:
        path = self.paths[self.rows["file"][row]]
        position = [int(self.rows[name][row]) for name in ("offset", "length", "field")]
        with path.open("rb", buffering=0) as file:
            return read_message(file.fileno(), path, *position)


def _wanted(
    files: str,
    kinds: Sequence[Kind],
    own: Sequence[Variable | None],
    left_out: Mapping[Kind, int],
    variables: Iterable[Variable] | None,
    surface: bool,
) -> tuple[Variable, ...]:
    """Return the requested variables, which must be in the files, or all variables."""
    found = {variable for variable in own if variable}
    if variables is not None:
        wanted = requested_variables(files, variables, found)
        if missing := [variable for variable in wanted if variable not in found]:
            if only := {kind: count for kind, count in left_out.items() if kind.short_name == missing[0].name}:
                raise AbsentVariableError(_only_left_out(f"{files} has {missing[0]}", only))
            raise AbsentVariableError(f"{files} has no {joined(missing)}; it has {_names(kinds, own)}")
        return wanted
    unnamed = [kind for kind, variable in zip(kinds, own, strict=True) if not variable and not kind.left_out]
    if not surface and unnamed:
        raise InputError(
            f"{files} has {unnamed[0]}, which is neither at the surface nor on a whole number of hPa; "
            "name the variables to read"
        )
    wanted = all_variables(found, surface=surface)
    if not wanted and not found and left_out:
        raise InputError(_only_left_out(f"{files} has messages", left_out))
    if not wanted:
        raise InputError(f"{files} has no fields at the surface but {_names(kinds, own)}; name other files")
    return wanted


def _forget_unnamed_intervals(rows: np.ndarray, kinds: Sequence[Kind], own: Sequence[Variable | None]) -> None:
    """Set the interval to `UNKNOWN` where a message is instantaneous but the user names it as a statistic over time."""
    changed = [
        variable is not None and kind.process == "instant" and variable.processing != "instant"
        for kind, variable in zip(kinds, own, strict=True)
    ]
    rows["interval"][np.array(changed)[rows["kind"]]] = UNKNOWN


def _tell_turned_winds(files: str, rows: np.ndarray, kinds: Sequence[Kind], wanted: Sequence[Variable]) -> None:
    """Say how many fields are components along the axes of their grid, which are not eastward and northward."""
    turned = np.array([bool(kind.layout.section) and kind.layout.along_grid for kind in kinds])[rows["kind"]]
    turned &= np.array([variable.component for variable in wanted])[rows["variable"]]
    if turned.any():
        names = ", ".join(str(wanted[k]) for k in np.unique(rows["variable"][turned]))
        say_once(
            f"{files}: {turned.sum():,} fields of {names} are along the axes of the grid (uvRelativeToGrid=1), not "
            "eastward and northward; they are used as they are, and refused together with eastward ones"
        )


def _only_left_out(what: str, left_out: Mapping[Kind, int]) -> str:
    return (
        f"{what} only as {describe_left_out(left_out)}, which are no forecasts, members or analyses; name files of "
        "members, in MARS of the types pf and cf, or of analyses"
    )


def _names(kinds: Sequence[Kind], own: Sequence[Variable | None]) -> str:
    """Return the names of the variables, and of kinds without a variable, sorted by short name and level."""
    ordered = sorted(range(len(kinds)), key=lambda k: (kinds[k].short_name, kinds[k].level))
    return ", ".join(dict.fromkeys(str(own[k] or kinds[k]) for k in ordered))
