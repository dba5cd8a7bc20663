"""A store's fields as a catalog, so that they are laid out and opened like those of any other format."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from data_pipeline.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.store.manifest import Manifest
from data_pipeline.store.plan import FLOAT
from data_pipeline.store.reading import PLACE, StoredValues
from data_pipeline.store.shard import ENSEMBLE, TARGET
from data_pipeline.task import Variable

ROW = np.dtype([("variable", "i4"), ("init", "i8"), ("step", "i4"), ("number", "i4"), *PLACE.descr])
"""Where a field belongs, and where its values are."""


@dataclass(frozen=True, eq=False)
class StoredFields:
    """The fields of the `wanted` variables in the files of a store, one row for each.

    Forecasts at all starts and lead times of the store are listed; those that are not among its samples are nowhere.
    """

    folder: Path
    paths: tuple[Path, ...]
    grid: Grid
    wanted: tuple[Variable, ...]
    rows: np.ndarray

    @classmethod
    def ensemble(cls, folder: Path, manifest: Manifest, variables: Sequence[Variable]) -> StoredFields:
        """Find the fields of the ensemble of `variables`."""
        plan = manifest.plan
        place = {sample: k for k, sample in enumerate(plan.samples)}
        starts = sorted({start for start, _ in plan.samples})
        slots = [(start, 60 * lead, place.get((start, lead), -1)) for start in starts for lead in plan.lead_times]
        numbers = range(plan.ensemble_shape[0]) if plan.moments else plan.numbers
        return cls(folder, *_fields(folder, manifest, ENSEMBLE, variables, plan.inputs, slots, numbers))

    @classmethod
    def truth(cls, folder: Path, manifest: Manifest, variables: Sequence[Variable]) -> StoredFields:
        """Find the analyses of `variables`, each once although several forecasts may be valid at its time."""
        plan = manifest.plan
        place = {start + 3600 * lead: k for k, (start, lead) in enumerate(plan.samples)}
        slots = [(time, 0, place[time]) for time in sorted(place)]
        return cls(folder, *_fields(folder, manifest, TARGET, variables, plan.targets, slots, (0,)))

    def __str__(self) -> str:
        return f"the store {self.folder}"

    @cached_property
    def source(self) -> StoredValues:
        """The fields' values, counted as in `rows`."""
        places = np.empty(len(self.rows), PLACE)
        for name in PLACE.names or ():
            places[name] = self.rows[name]
        return StoredValues(self.grid, self.paths, places)

    def where(self, condition: np.ndarray) -> StoredFields:
        """Return only the fields for which `condition` holds."""
        return replace(self, rows=self.rows[condition])

    def place(self, row: int) -> str:
        """Return where a field stands, in words."""
        return f"{self.paths[self.rows['file'][row]]} (byte {self.rows['offset'][row]})"

    def units(self, name: str) -> tuple[str, str]:
        """Return units and long name of the variables called `name`."""
        return Variable(name).units, name

    def refuse_contradiction(self, first: int, second: int) -> None:
        """No two fields of a store have one place."""
        raise AssertionError(f"{self.place(first)} and {self.place(second)} have one place")


def _fields(
    folder: Path,
    manifest: Manifest,
    kind: str,
    variables: Sequence[Variable],
    there: Sequence[Variable],
    slots: Sequence[tuple[int, int, int]],
    numbers: Collection[int],
) -> tuple[tuple[Path, ...], Grid, tuple[Variable, ...], np.ndarray]:
    """List the fields of one kind by `slots` (init, step, sample, or -1 where there is none), members and variables."""
    plan = manifest.plan
    wanted = tuple(dict.fromkeys(variables))
    if not wanted:
        raise InputError(f"no variable of the store {folder} was named; name at least one, such as 2t or t@850")
    if missing := [variable for variable in wanted if variable not in there]:
        what = "the truth in the store" if kind == TARGET else "the store"
        raise InputError(
            f"{what} {folder} has no {_join(missing)}; it has {_join(sorted(there))}; "
            "make a store for this task, or leave out data.store"
        )
    init, step, sample = (np.array(column)[:, None, None] for column in zip(*slots, strict=True))
    channel = np.array([there.index(variable) for variable in wanted])
    member = np.arange(len(numbers))[:, None]
    field = FLOAT * int(np.prod(plan.grid.shape))
    first = np.array([manifest.files[name].offsets[kind] for name in plan.shards])
    rows = np.empty((len(slots), len(numbers), len(wanted)), ROW)
    rows["variable"] = np.arange(len(wanted))
    rows["init"], rows["step"], rows["number"] = init, step, np.array(numbers)[:, None]
    file, within = np.divmod(sample, plan.shard_samples)
    rows["file"] = file
    fields = (within * len(numbers) + member) * len(there) + channel
    rows["offset"] = np.where(sample < 0, -1, first[file] + field * fields)
    return tuple(folder / name for name in plan.shards), plan.grid, wanted, rows.ravel()


def _join(values: Collection[object]) -> str:
    return ", ".join(map(str, values))
