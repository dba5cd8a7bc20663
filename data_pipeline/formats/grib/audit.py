"""Count the messages of many GRIB files, and find messages that are missing or repeated.

`Census` keeps counts and values but no messages, so that archives of any size fit in memory. `Audit` then compares the
messages of a few files with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import eccodes
import numpy as np

from data_pipeline.formats.cycles import group_by_start
from data_pipeline.formats.grib.keys import opened
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.table import Table, common_kinds

AXES = ("init", "step", "number")
"""The fields of a record that distinguish messages of one variable."""

SLOT = np.dtype(
    [
        ("name", "i4"), ("file", "i4"), ("init", "i8"), ("step", "i4"), ("number", "i4"), ("interval", "i4"),
        ("row", "i4"),
    ]
)  # fmt: skip
"""A message, or a missing message; `file` is then the file that should hold it."""

PRODUCT_KEYS = (
    "productDefinitionTemplateNumber", "typeOfStatisticalProcessing", "lengthOfTimeRange", "derivedForecast",
    "probabilityType", "scaledValueOfLowerLimit", "scaledValueOfUpperLimit", "percentileValue",
)  # fmt: skip
"""Keys of GRIB2 that define a field but belong to none of ecCodes' namespaces."""


class Census:
    """Counts of messages in all tables that were added, and their starts, steps, members and intervals.

    Messages that are left out appear only in `left_out`.
    """

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.bytes = 0
        self.count_of: dict[Kind, int] = {}
        self.left_out: Counter[Kind] = Counter()
        self.first_file_of: dict[Kind, Path] = {}
        self.intervals: dict[str, tuple[np.ndarray, bool]] = {}
        """The intervals (minutes) of each variable, and whether all begin at the start of the forecast."""
        self.axes: dict[str, list[np.ndarray]] = {}
        """The starts, steps and members of each variable in all files."""
        self._starts: list[np.ndarray] = []

    def add(self, table: Table) -> None:
        """Count the messages of one more file."""
        self.paths.append(table.path)
        self.bytes += table.stamp.size
        table, left_out = table.split()
        self.left_out.update(left_out)
        counts = np.bincount(table.records["kind"], minlength=len(table.kinds)).tolist()
        names = np.array([str(kind) for kind in table.kinds])
        for kind, count in zip(table.kinds, counts, strict=True):
            self.count_of[kind] = self.count_of.get(kind, 0) + count
            self.first_file_of.setdefault(kind, table.path)
        for name in dict.fromkeys(names.tolist()):
            mine = table.records[(names == name)[table.records["kind"]]]
            known = self.axes.setdefault(name, [np.empty(0, mine[axis].dtype) for axis in AXES])
            self.axes[name] = [np.union1d(one, mine[axis]) for one, axis in zip(known, AXES, strict=True)]
            intervals, since_start = self.intervals.get(name, (np.empty(0, np.int32), True))
            since_start &= bool((mine["interval"] == mine["step"]).all())
            self.intervals[name] = np.union1d(intervals, mine["interval"]), since_start
        self._starts.append(np.unique(table.records["init"]))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All kinds of messages."""
        return tuple(self.count_of)

    @property
    def fields(self) -> int:
        """The number of messages that can be read."""
        return sum(self.count_of.values())

    @property
    def messages(self) -> int:
        """The number of all messages."""
        return self.fields + self.left_out.total()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all variables."""
        return tuple(self.axes)

    def values(self, axis: str) -> np.ndarray:
        """Return the starts, steps or members of all variables."""
        return np.unique(np.concatenate([axes[AXES.index(axis)] for axes in self.axes.values()]))

    def expected(self, name: str) -> int:
        """Return the number of all combinations of a variable's starts, steps and members."""
        return int(np.prod([len(axis) for axis in self.axes[name]], dtype=np.int64))

    def counts(self, attribute: Callable[[Kind], str]) -> dict[str, int]:
        """Return the number of messages for each value of an attribute of their kinds, such as `str`, the variable."""
        counts = Counter[str]()
        for kind, count in self.count_of.items():
            counts[attribute(kind)] += count
        return counts

    def groups(self) -> Iterator[list[Path]]:
        """Yield groups of files that share starts, directly or through other files of the group."""
        for files in group_by_start(self._starts):
            yield [self.paths[file] for file in files]


@dataclass(frozen=True, eq=False)
class Audit:
    """Missing and repeated messages in one group of a census.

    A variable should have every combination of the starts, lead times and members that it has in any file. `missing`
    omits variables of which more than half is missing: these were selected differently and have no gaps.
    """

    tables: Sequence[Table]
    names: tuple[str, ...]
    slots: np.ndarray
    missing: np.ndarray
    repeated: np.ndarray
    """Pairs of positions in `slots` that hold the same field."""
    further_intervals: int
    """Number of messages that differ from another message in the interval only."""

    @classmethod
    def of(cls, tables: Sequence[Table], census: Census) -> Audit:
        """Compare the files of a group with the census."""
        tables = [table.split()[0] for table in tables]
        kinds, of_records = common_kinds(tables)
        names = tuple(dict.fromkeys(map(str, kinds)))
        name_of = np.array([names.index(str(kind)) for kind in kinds], np.int64)
        slots = np.empty(sum(len(table.records) for table in tables), SLOT)
        start = 0
        for file, table in enumerate(tables):
            part = slots[start : start + len(table.records)]
            part["file"], part["name"], part["row"] = file, name_of[of_records[file]], np.arange(len(part))
            for axis in (*AXES, "interval"):
                part[axis] = table.records[axis]
            start += len(part)
        order = np.lexsort([slots[axis] for axis in ("interval", *AXES[::-1], "name")])
        shared = np.ones(max(len(order) - 1, 0), bool)
        for axis in ("name", *AXES):
            shared &= np.diff(slots[axis][order]) == 0
        same = shared & (np.diff(slots["interval"][order]) == 0)
        repeated = np.stack([order[:-1][same], order[1:][same]], axis=1)
        counts = census.counts(str)
        missing = [slots[:0]]
        for name, text in enumerate(names):
            if census.expected(text) <= 2 * counts[text]:
                missing.append(_gaps(slots[slots["name"] == name], census.axes[text]))
        return cls(tables, names, slots, np.concatenate(missing), repeated, int((shared & ~same).sum()))

    def missing_by_file(self) -> Iterator[tuple[Table, np.ndarray]]:
        """Yield each file that lacks messages, with their `SLOT`s."""
        for file in np.unique(self.missing["file"]).tolist():
            yield self.tables[file], self.missing[self.missing["file"] == file]

    def describe_repeated(self) -> Iterator[str]:
        """Yield a text for each repeated field: both positions, and the keys in which the messages differ."""
        for pair in self.repeated.tolist():
            one, other = self.slots[pair]
            positions, messages = [], []
            for slot in (one, other):
                table = self.tables[slot["file"]]
                record = table.records[slot["row"]]
                positions.append(f"{table.path} (byte {record['offset']})")
                with table.path.open("rb", buffering=0) as file:
                    messages.append(table.message(file.fileno(), record))
            same = "are the same" if messages[0] == messages[1] else f"differ in {difference(*messages)}"
            yield f"{self.names[one['name']]} in {positions[0]} and {positions[1]}, which {same}"


def difference(one: bytes, other: bytes) -> str:
    """Return the keys in which two messages differ, with both values."""
    keys, others = _keys(one), _keys(other)
    pairs = {key: (keys.get(key), others.get(key)) for key in {**keys, **others}}
    differ = [f"{key} {value} and {another}" for key, (value, another) in pairs.items() if value != another]
    return ", ".join(differ) or "their values only"


def _gaps(mine: np.ndarray, axes: Sequence[np.ndarray]) -> np.ndarray:
    """Return the missing `SLOT`s of one variable, at the starts of this group."""
    starts = np.unique(mine["init"])
    axes = (starts, *axes[1:])
    there = np.zeros(tuple(map(len, axes)), bool)
    there[tuple(np.searchsorted(values, mine[axis]) for axis, values in zip(AXES, axes, strict=True))] = True
    holes = np.nonzero(~there)
    gaps = np.empty(len(holes[0]), SLOT)
    gaps["name"], gaps["row"] = mine["name"][0], -1
    for axis, values, at in zip(AXES, axes, holes, strict=True):
        gaps[axis] = values[at]
    files = dict(zip(mine["init"].tolist(), mine["file"].tolist(), strict=True))
    gaps["file"] = [files[start] for start in gaps["init"].tolist()]
    return gaps


def _keys(message: bytes) -> dict[str, str]:
    """Return the keys that may distinguish two messages."""
    keys = {}
    with opened(message) as handle:
        for name in PRODUCT_KEYS:
            if eccodes.codes_is_defined(handle, name):
                keys[name] = eccodes.codes_get_string(handle, name)
        for namespace in ("ls", "mars"):
            iterator = eccodes.codes_keys_iterator_new(handle, namespace)
            while eccodes.codes_keys_iterator_next(iterator):
                name = eccodes.codes_keys_iterator_get_name(iterator)
                keys[name] = eccodes.codes_get_string(handle, name)
            eccodes.codes_keys_iterator_delete(iterator)
    return keys
