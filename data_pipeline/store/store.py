"""Store: a folder made by `Store.write`, read through the same methods as an archive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from functools import cached_property
from itertools import compress, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.common.identity import HASH_THREADS, sampled_hash_of
from data_pipeline.common.messages import joined
from data_pipeline.common.threads import in_threads
from data_pipeline.dates import Dates, epoch_seconds
from data_pipeline.formats.cube import Cube, fields_of
from data_pipeline.formulas.formula import Formula
from data_pipeline.grid import Grid
from data_pipeline.ledger import Omission
from data_pipeline.protocols import DataSource, Fields, MissingPolicy
from data_pipeline.store.manifest import MANIFEST_NAME, Manifest
from data_pipeline.store.store_catalog import StoreCatalog
from data_pipeline.store.store_plan import STATIC_NAME, StorePlan
from data_pipeline.store.store_writer import WriteJob, complete_store
from data_pipeline.task import Task, Variable
from data_pipeline.truth_checks import Findings, TruthChecks, checked, examine

if TYPE_CHECKING:
    import xarray as xr

_HOW_TO_REPAIR = "run `deepweather prepare` again, which rewrites only missing and damaged files"


class Store:
    """A finished store in `folder`. Opening the store checks the sizes of its files.

    A store is a `DataSource` like `data_pipeline.archive.Archive`: `ForecastDataset(Store(folder), task, years)` has
    the same samples as `ForecastDataset(archive, task, years)`. It has no oracle.
    """

    oracle = None

    def __init__(self, folder: str | Path, truth_checks: TruthChecks = "report") -> None:
        self.folder, self.truth_checks = Path(folder), truth_checks
        found = Manifest.read(self.folder)
        if found is None:
            raise InputError(f"{self.folder / MANIFEST_NAME} does not exist; set data.store to the folder of a store")
        if not found.complete:
            left = len(found.plan.files) - len(found.files)
            raise InputError(f"the store {self.folder} lacks {left} of {len(found.plan.files)} files; {_HOW_TO_REPAIR}")
        self._manifest, self.contents = found, found.plan
        for name, file in found.files.items():
            path = self.folder / name
            if not path.is_file():
                raise InputError(f"{path} is missing; {_HOW_TO_REPAIR}")
            if (size := path.stat().st_size) != file.bytes:
                raise InputError(f"{path} has {size} bytes instead of {file.bytes}; {_HOW_TO_REPAIR}")

    def __str__(self) -> str:
        return f"the store {self.folder}"

    @staticmethod
    def plan(
        archive: DataSource,
        task: Task,
        dates: Dates | Iterable[int] | None = None,
        *,
        moments: bool = False,
        shard_bytes: int = 10**9,
    ) -> StorePlan:
        """Return the plan of the store that `write` would make: `samples`, `files`, `bytes`; `str()` summarises it."""
        return WriteJob.from_task(archive, task, _dates(dates), moments, shard_bytes).plan

    @classmethod
    def write(
        cls,
        archive: DataSource,
        task: Task,
        folder: str | Path,
        dates: Dates | Iterable[int] | None = None,
        *,
        moments: bool = False,
        shard_bytes: int = 10**9,
        workers: Executor | None = None,
    ) -> Store:
        """Write the usable forecasts of `task` that are valid on `dates` (or years; None: all); return the store.

        With `moments` the M members are reduced to mean and spread, which makes the ensemble M/2 times smaller. A file
        holds at most `shard_bytes`, but at least one sample. Each file is a task of `workers`; None
        writes one file after the other. Processes must see the same files under the same paths. A task needs the memory
        of one sample.

        After a kill the same call continues: it keeps files with a correct checksum and writes the others. The result
        is the same byte for byte. Raises `InputError` if the folder holds another store or if another process
        is writing to it, and `InterruptedRunError` (exit code 3) after Ctrl-C or on a full disk.
        """
        job = WriteJob.from_task(archive, task, _dates(dates), moments, shard_bytes)
        complete_store(job, Path(folder), workers)
        return cls(folder)

    @property
    def grid(self) -> Grid:
        """The grid of all fields."""
        return self.contents.grid

    @property
    def moments(self) -> tuple[int, ...] | None:
        """Numbers of the members that the two pseudo-members represent; None if all members are stored."""
        return self.contents.numbers if self.contents.moments else None

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the archive from which the store was made; `InputError` if a file has changed since."""
        files = self._manifest.files
        found = in_threads(sampled_hash_of, [self.folder / name for name in files], HASH_THREADS)
        if changed := [name for name, one in zip(files, found, strict=True) if one != files[name].sampled]:
            raise InputError(f"{self.folder / changed[0]} has changed since it was written; {_HOW_TO_REPAIR}")
        return self.contents.fingerprint

    @cached_property
    def static(self) -> xr.Dataset:
        """All static fields of the archive, (latitude, longitude)."""
        import xarray as xr

        if not self.contents.static:
            return xr.Dataset()
        with xr.open_dataset(self.folder / STATIC_NAME, engine="netcdf4") as fields:
            return fields.load()

    @property
    def missing(self) -> MissingPolicy:
        """The option `missing` of the archive from which the store was made."""
        return self.contents.missing

    @property
    def omissions(self) -> tuple[Omission, ...]:
        """The forecasts that are left out of the store, and its samples with missing fields."""
        return self.contents.omissions

    def covers(self, dates: Dates) -> bool:
        """Whether the store has all forecasts of the archive that are valid on `dates`."""
        return self._dates.covers(dates)

    def check_available(self, task: Task, dates: Dates, moments: bool) -> None:
        """Raise an `InputError` if the archive can provide more than the store: dates, lead times, fields or members.

        A store omits forecasts that lack a field of the store's task; a task that could use them is refused too.
        """
        own, other_store = self.contents, "make a store for this task, or leave out data.store"
        if date := dates.first_not_in(self._dates):
            raise InputError(
                f"{self} was made without {date}; make a store with all dates of this task, or leave out data.store"
            )
        for what, unit, needed, there in (
            (f"{self}", "lead time {} h", task.lead_times, own.lead_times),
            (f"the truth in {self}", "{}", task.targets, own.targets),
        ):
            if gone := [str(value) for value in needed if value not in there]:
                has = unit.format(joined(there)).removeprefix("lead time ")
                raise InputError(f"{what} has no {unit.format(', '.join(gone))}; it has {has}; {other_store}")
        wanted = {*map(str, task.fields_read), *(f"{target} truth" for target in task.targets)}
        on_dates = dates.contains(np.array([one.valid_time for one in self.omissions], "datetime64[s]"))
        incomplete = [one for one in compress(self.omissions, on_dates) if one.channels and one.lead in task.lead_times]
        # With "mask", one field is enough for a forecast to be used, even a field that the store does not hold.
        further = self.missing == "mask" and not {*task.fields_read} <= {*own.fields_read}
        lost = [one for one in incomplete if not one.used and (further or not wanted & {*one.channels})]
        if lost:
            raise InputError(
                f"{self} was made without {len(lost)} forecasts that lack a field and could be used for this task, the "
                f"first at {lost[0]}; {other_store}"
            )
        if absent := own.absent_field(task, dates):
            channel, start, lead = absent
            raise InputError(
                f"{self} lacks {channel} for the forecast of {np.datetime64(start, 's')} at {lead} h; {other_store}"
            )
        if empty := self._emptied(task, [one for one in incomplete if one.used]):
            raise InputError(
                f"{self} has a forecast without any of the fields that this task needs, {empty}; {other_store}"
            )
        if lagged := [one for one in task.formulas if one.lag and one not in self.formulas]:
            raise InputError(f"{self} does not hold {lagged[0]}, which is of earlier starts; {other_store}")
        if own.moments and (computed := [one for one in task.formulas if one not in self.formulas]):
            raise InputError(
                f"{self} holds mean and spread of the members, from which {computed[0]} cannot be computed; "
                f"{other_store}"
            )
        if own.moments and not moments:
            raise InputError(
                f"{self} holds only mean and spread of the ensemble, but its members are needed; "
                "make a store without moments, or leave out data.store"
            )

    @property
    def formulas(self) -> tuple[Formula, ...]:
        """The formulas whose values are stored."""
        return self.contents.formulas

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the ensemble fields from which samples are read."""
        catalog = StoreCatalog.ensemble(self.folder, self._manifest, variables, lead_times)
        return fields_of(Cube.forecasts(catalog, lead_times, "mask"))

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the analysis fields from which samples are read."""
        return checked(self._analyses(variables), self.truth_checks, self._findings)

    def _analyses(self, variables: Sequence[Variable]) -> Fields:
        return fields_of(Cube.analyses(StoreCatalog.truth(self.folder, self._manifest, variables), "mask"))

    def _findings(self, variable: Variable) -> Findings:
        """Return the implausible values of the truth of a variable, compared with the stored forecasts."""
        held = variable in (channel.variable for channel in self.contents.channels)
        forecasts = self.ensemble_fields([variable], self.contents.lead_times) if held else None
        return examine(self._analyses([variable]), variable, forecasts)

    @property
    def _dates(self) -> Dates:
        return self.contents.dates or Dates.all()

    def _emptied(self, task: Task, masked: Sequence[Omission]) -> Omission | None:
        """Return one of the `masked` samples in which all fields of one kind that `task` reads are missing, or None.

        Channels of one origin are a kind; the truth is another. The archive would leave out such a forecast, or not
        even count it. The store has it as a sample, because fields that `task` does not read have values.
        """
        own, kinds = self.contents, {(one.origin, one.hours) for one in task.fields_read}
        if {*own.fields_read} <= {*task.fields_read} and {*own.targets} <= {*task.targets}:
            return None
        for (origin, hours), lead in product(kinds, task.lead_times):
            read = [one for one in task.fields_read if not isinstance(one.variable, Formula)]
            kind = [one for one in read if (one.origin, one.hours) == (origin, hours)]
            suspects = [one for one in masked if one.lead == lead and {*map(str, kind)} <= {*one.channels}]
            stored = [one.variable for one in kind if one in own.channels and origin != "analysis"]
            if suspects and stored:
                fields = self.ensemble_fields(stored, [kind[0].lead_time(lead)])
                suspects = [one for one in suspects if not _any_value(fields, one.start)]
            if suspects:
                return suspects[0]
        truth = {f"{target} truth" for target in task.targets}
        return next((one for one in masked if truth <= {*one.channels}), None)


def choose_source(archive: Archive, folder: str | Path | None, dates: Dates) -> DataSource:
    """Return the store in `folder` if it has all `dates`, else the archive; without a folder, the archive.

    The store must have been made from files with the archive's contents, by the current version of their reader. If the
    files do not exist on this machine, the store is used without this check.
    """
    if folder is None:
        return archive
    store = Store(folder, "error" if archive.truth_checks == "error" else "report")
    if store.contents.masked != (archive.truth_checks == "mask"):
        raise InputError(
            f"{store} was made with{'' if store.contents.masked else 'out'} data.archive.truth_checks=mask; set the "
            "same value, make the store again in another folder, or leave out data.store"
        )
    if archive.exists and archive.fingerprint != store.fingerprint:
        raise InputError(
            f"{store} was made from other files than data.archive now names, or these files have changed, or another "
            "version of deepweather read them; make the store again in another folder, or leave out data.store"
        )
    if store.missing != archive.missing and any(one.reason in ("missing_field", "masked") for one in store.omissions):
        raise InputError(
            f"{store} was made with data.archive.missing={store.missing}, and some of its forecasts lack a field; set "
            f"the same value, make a store with {archive.missing} in another folder, or leave out data.store"
        )
    return store if store.covers(dates) else archive


def _any_value(fields: Fields, start: int) -> bool:
    """Return whether a field of the forecast from `start` (seconds since 1970) has a value, in any member."""
    init = epoch_seconds(fields.init_times).tolist().index(start)
    values = np.empty((1, len(fields.variables), *fields.grid.shape), np.float32)
    for member in range(len(fields.numbers)):
        fields.read(fields.cells[init, 0, member : member + 1], values)
        if np.isfinite(values).any():
            return True
    return False


def _dates(given: Dates | Iterable[int] | None) -> Dates | None:
    return None if given is None else Dates.of(given).days
