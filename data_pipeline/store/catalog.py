"""A store's fields as a catalog, so that they are laid out and opened like those of any other format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.store.manifest import Manifest
from data_pipeline.store.plan import FLOAT, Plan
from data_pipeline.store.reading import PLACE, StoredValues
from data_pipeline.store.shard import ENSEMBLE, TARGET
from data_pipeline.task import Variable

ROW = np.dtype([("variable", "i4"), ("init", "i8"), ("step", "i4"), ("number", "i4"), *PLACE.descr])
"""Where a field belongs, and where its values are."""
Held = Mapping[Variable, Mapping[tuple[int, int], tuple[str, int, int]]]
"""Of each variable by start (seconds) and step (minutes): the kind of values, and the numbers of sample and channel."""
NOWHERE = ENSEMBLE, -1, 0
"""A field that belongs to no sample."""
SHAPES: dict[str, Callable[[Plan], tuple[int, ...]]] = {
    ENSEMBLE: lambda plan: plan.ensemble_shape,
    TARGET: lambda plan: plan.target_shape,
}


@dataclass(frozen=True, eq=False)
class StoredFields:
    """The fields of the `wanted` variables in the files of a store, one row for each.

    Forecasts at all starts and lead times of the store are listed; a field that belongs to none of its samples is at
    byte -1.
    """

    folder: Path
    paths: tuple[Path, ...]
    grid: Grid
    wanted: tuple[Variable, ...]
    rows: np.ndarray

    @classmethod
    def ensemble(
        cls, folder: Path, manifest: Manifest, variables: Sequence[Variable], lead_times: Sequence[int]
    ) -> StoredFields:
        """Find the fields of the ensemble of `variables`, each of which must be there at all `lead_times`."""
        plan = manifest.plan
        held: dict[Variable, dict[tuple[int, int], tuple[str, int, int]]] = {}
        starts = sorted({start for start, _ in plan.samples})
        # The analysis comes last, so that the numbers of the others are those among all channels.
        forecasts = [channel for channel in plan.channels if channel.origin != "analysis"]
        for c, channel in enumerate(forecasts):
            of_variable = held.setdefault(channel.variable, {})
            for k, (start, lead) in enumerate(plan.samples):
                of_variable.setdefault((start, 60 * channel.lead_time(lead)), (ENSEMBLE, k, c))
        leads = {(channel.variable, 60 * channel.lead_time(lead)) for channel in forecasts for lead in plan.lead_times}
        for (variable, step), start in product(leads, starts):
            held[variable].setdefault((start, step), NOWHERE)
        there = {step for _, step in leads}
        for variable in variables:
            steps = {step for other, step in leads if other == variable}
            if steps and (absent := [lead for lead in lead_times if 60 * lead in there and 60 * lead not in steps]):
                raise InputError(
                    f"the store {folder} has no {variable} at the lead time {absent[0]} h; "
                    "make a store for this task, or leave out data.store"
                )
        numbers = range(plan.ensemble_shape[0]) if plan.moments else plan.numbers
        return cls(folder, *_fields(folder, manifest, "the store", variables, held, numbers))

    @classmethod
    def truth(cls, folder: Path, manifest: Manifest, variables: Sequence[Variable]) -> StoredFields:
        """Find the analyses of `variables`, each once although several forecasts may be valid at its time.

        Those at the starts of forecasts lie among the channels of the ensemble, the same in every member.
        """
        plan = manifest.plan
        held: dict[Variable, dict[tuple[int, int], tuple[str, int, int]]] = {}
        for c, target in enumerate(plan.targets):
            of_target = held.setdefault(target, {})
            for k, (start, lead) in enumerate(plan.samples):
                of_target[start + 3600 * lead, 0] = TARGET, k, c
        for c, channel in enumerate(plan.channels):
            if channel.origin == "analysis":
                of_variable = held.setdefault(channel.variable, {})
                for k, (start, _) in enumerate(plan.samples):
                    of_variable.setdefault((start, 0), (ENSEMBLE, k, c))
        wanted = [held[variable] for variable in variables if variable in held]
        for slot in {slot for of_variable in wanted for slot in of_variable}:
            for of_variable in wanted:
                of_variable.setdefault(slot, NOWHERE)
        return cls(folder, *_fields(folder, manifest, "the truth in the store", variables, held, (0,)))

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
    what: str,
    variables: Sequence[Variable],
    held: Held,
    numbers: Collection[int],
) -> tuple[tuple[Path, ...], Grid, tuple[Variable, ...], np.ndarray]:
    """List the fields of `variables` that are `held`, for each of the members."""
    plan = manifest.plan
    wanted = tuple(dict.fromkeys(variables))
    if not wanted:
        raise InputError(f"no variable of the store {folder} was named; name at least one, such as 2t or t@850")
    if missing := [variable for variable in wanted if variable not in held]:
        raise InputError(
            f"{what} {folder} has no {_join(missing)}; it has {_join(sorted(held))}; "
            "make a store for this task, or leave out data.store"
        )
    shards = {kind: np.array([manifest.files[name].offsets[kind] for name in plan.shards]) for kind in SHAPES}
    field = FLOAT * int(np.prod(plan.grid.shape))
    rows = np.empty((sum(len(held[variable]) for variable in wanted), len(numbers)), ROW)
    rows["number"] = np.array(numbers)
    first = 0
    for v, variable in enumerate(wanted):
        of_variable = rows[first : first + len(held[variable])]
        first += len(of_variable)
        of_variable["variable"] = v
        for name, column in zip(("init", "step"), zip(*held[variable], strict=True), strict=True):
            of_variable[name] = np.array(column)[:, None]
        kinds, samples, channels = (np.array(column) for column in zip(*held[variable].values(), strict=True))
        file, within = np.divmod(samples, plan.shard_samples)
        of_variable["file"], of_variable["offset"] = file[:, None], -1
        for kind, shape in SHAPES.items():
            mine = (kinds == kind) & (samples >= 0)
            members, count = shape(plan)[:2]
            # An analysis has one member: the first of all that are the same.
            member = np.arange(len(numbers))
            place = ((within[mine, None] * members + member) * count + channels[mine, None]) * field
            of_variable["offset"][mine] = shards[kind][file[mine], None] + place
    return tuple(folder / name for name in plan.shards), plan.grid, wanted, rows.ravel()


def _join(values: Collection[object]) -> str:
    return ", ".join(map(str, values))
