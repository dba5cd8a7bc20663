"""Census: what the tables of many files add up to, one after the other, so that no message need be remembered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.table import Table

AXES = ("init", "step", "number")
"""What tells the messages of one variable apart."""


class Census:
    """Counts and values of all tables that were added."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.bytes = 0
        self.count_of: dict[Kind, int] = {}
        self.first_file_of: dict[Kind, Path] = {}
        self._axes: dict[str, list[np.ndarray]] = {}
        self._starts: list[np.ndarray] = []

    def add(self, table: Table) -> None:
        """Count the messages of one more file."""
        self.paths.append(table.path)
        self.bytes += table.stamp.size
        counts = np.bincount(table.records["kind"], minlength=len(table.kinds)).tolist()
        names = np.array([str(kind) for kind in table.kinds])
        for kind, count in zip(table.kinds, counts, strict=True):
            self.count_of[kind] = self.count_of.get(kind, 0) + count
            self.first_file_of.setdefault(kind, table.path)
        for name in dict.fromkeys(names.tolist()):
            mine = table.records[(names == name)[table.records["kind"]]]
            known = self._axes.setdefault(name, [np.empty(0, mine[axis].dtype) for axis in AXES])
            self._axes[name] = [np.union1d(one, mine[axis]) for one, axis in zip(known, AXES, strict=True)]
        self._starts.append(np.unique(table.records["init"]))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All kinds of messages."""
        return tuple(self.count_of)

    @property
    def messages(self) -> int:
        """The number of all messages."""
        return sum(self.count_of.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all variables."""
        return tuple(self._axes)

    def axes_of(self, name: str) -> list[np.ndarray]:
        """Return the starts, steps and members of a variable, wherever it has them."""
        return self._axes[name]

    def values(self, axis: str) -> np.ndarray:
        """Return all starts, steps or members, of whatever variable."""
        return np.unique(np.concatenate([axes[AXES.index(axis)] for axes in self._axes.values()]))

    def places(self, name: str) -> int:
        """Return how many messages of a variable there should be: every start, lead time and member together."""
        return int(np.prod([len(axis) for axis in self._axes[name]], dtype=np.int64))

    def counts_by_name(self) -> dict[str, int]:
        """Return how many messages of each variable there are."""
        counts = dict.fromkeys(self.names, 0)
        for kind, count in self.count_of.items():
            counts[str(kind)] += count
        return counts

    def counts(self, attribute: str) -> dict[str, int]:
        """Return how many messages there are for each value of an attribute of their kinds."""
        counts: dict[str, int] = {}
        for kind, count in self.count_of.items():
            value = getattr(kind, attribute)
            counts[value] = counts.get(value, 0) + count
        return counts

    def groups(self) -> Iterator[list[Path]]:
        """Yield files that have starts in common, directly or through others; different groups have none."""
        group_of: dict[int, int] = {}
        groups: dict[int, list[int]] = {}
        for file, starts in enumerate(self._starts):
            together = [file]
            for known in {group_of[start] for start in starts.tolist() if start in group_of}:
                together += groups.pop(known)
            groups[file] = together
            for member in together:
                group_of.update(dict.fromkeys(self._starts[member].tolist(), file))
        for files in sorted(sorted(files) for files in groups.values()):
            yield [self.paths[file] for file in files]
