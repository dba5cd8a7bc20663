"""Which file lacks which messages, and which hold the same field twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.formats.grib.census import AXES, Census
from data_pipeline.formats.grib.compare import difference
from data_pipeline.formats.grib.scan import read
from data_pipeline.formats.grib.table import Table, common_kinds

PLACE = np.dtype([("name", "i4"), ("file", "i4"), ("init", "i8"), ("step", "i4"), ("number", "i4"), ("row", "i4")])
"""One message, or one that is missing: `file` is then the file where it should be."""


@dataclass(frozen=True, eq=False)
class Audit:
    """The messages of one of the groups of a census against the cube of each variable.

    Every start, lead time and member that a variable has in any file should be there in every combination. `missing`
    holds places only of variables of which at least half is there: of the others, too much is missing to be a gap.
    """

    tables: Sequence[Table]
    names: tuple[str, ...]
    places: np.ndarray
    missing: np.ndarray
    repeated: np.ndarray
    """Pairs of positions in `places`: the same field twice."""

    @classmethod
    def of(cls, tables: Sequence[Table], census: Census) -> Audit:
        """Compare the files of a group."""
        kinds, of_records = common_kinds(tables)
        names = tuple(dict.fromkeys(map(str, kinds)))
        name_of = np.array([names.index(str(kind)) for kind in kinds])
        places = np.empty(sum(len(table.records) for table in tables), PLACE)
        start = 0
        for file, table in enumerate(tables):
            part = places[start : start + len(table.records)]
            part["file"], part["name"], part["row"] = file, name_of[of_records[file]], np.arange(len(part))
            for axis in AXES:
                part[axis] = table.records[axis]
            start += len(part)
        order = np.lexsort([places[axis] for axis in (*AXES[::-1], "name")])
        same = np.ones(len(order) - 1, bool)
        for axis in ("name", *AXES):
            same &= np.diff(places[axis][order]) == 0
        repeated = np.stack([order[:-1][same], order[1:][same]], axis=1)
        counts = census.counts_by_name()
        missing = [places[:0]]
        for name, text in enumerate(names):
            if census.places(text) <= 2 * counts[text]:
                missing.append(_gaps(places[places["name"] == name], census.axes_of(text)))
        return cls(tables, names, places, np.concatenate(missing), repeated)

    def lacks(self) -> Iterator[tuple[Table, np.ndarray]]:
        """Yield the files that lack messages, with the places of these."""
        for file in np.unique(self.missing["file"]).tolist():
            yield self.tables[file], self.missing[self.missing["file"] == file]

    def repeats(self) -> Iterator[str]:
        """Yield a sentence for every field that is there twice."""
        for pair in self.repeated.tolist():
            one, other = self.places[pair]
            says, messages = [], []
            for place in (one, other):
                path, record = self.tables[place["file"]].path, self.tables[place["file"]].records[place["row"]]
                says.append(f"{path} (byte {record['offset']})")
                with path.open("rb", buffering=0) as file:
                    messages.append(read(file.fileno(), path, int(record["offset"]), int(record["length"])))
            same = "are the same" if messages[0] == messages[1] else f"differ in {difference(*messages)}"
            yield f"{self.names[one['name']]} in {says[0]} and {says[1]}, which {same}"


def _gaps(mine: np.ndarray, axes: Sequence[np.ndarray]) -> np.ndarray:
    """Return which places of one variable are missing at the starts that it has here."""
    starts = np.unique(mine["init"])
    axes = (starts, *axes[1:])
    there = np.zeros(tuple(map(len, axes)), bool)
    there[tuple(np.searchsorted(values, mine[axis]) for axis, values in zip(AXES, axes, strict=True))] = True
    holes = np.nonzero(~there)
    gaps = np.empty(len(holes[0]), PLACE)
    gaps["name"], gaps["row"] = mine["name"][0], -1
    for axis, values, at in zip(AXES, axes, holes, strict=True):
        gaps[axis] = values[at]
    files = dict(zip(mine["init"].tolist(), mine["file"].tolist(), strict=True))
    gaps["file"] = [files[start] for start in gaps["init"].tolist()]
    return gaps
