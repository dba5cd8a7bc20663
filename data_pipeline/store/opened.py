"""Store: the samples of a folder that `Store.write` has made, offered as an archive offers them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import xarray as xr

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.formats.cube import Cube
from data_pipeline.formats.datasets import open_cube
from data_pipeline.formats.fields import CubeFields
from data_pipeline.grid import Grid
from data_pipeline.protocols import Chunks, DataSource, Fields
from data_pipeline.store.catalog import StoredFields
from data_pipeline.store.manifest import NAME, Manifest
from data_pipeline.store.plan import STATIC, Job, Plan
from data_pipeline.store.writing import write
from data_pipeline.task import Channel, Task, Variable

AGAIN = "make it again with `deepweather prepare`, which keeps what is whole"


class Store:
    """A finished store in `folder`; opening looks at the files' sizes, `verify` reads every byte.

    It offers what `data_pipeline.archive.Archive` offers, so that `ForecastDataset(Store(folder), task, years)` gives
    the very samples of `ForecastDataset(archive, task, years)`. There is no oracle in it.
    """

    oracle = None

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        found = Manifest.read(self.folder)
        if found is None:
            raise InputError(f"{self.folder / NAME} is not there; name the folder of a store, or leave out data.store")
        if not found.complete:
            left = len(found.plan.files) - len(found.files)
            raise InputError(f"the store {self.folder} lacks {left} of {len(found.plan.files)} files; {AGAIN}")
        self._manifest, self.contents = found, found.plan
        for name, file in found.files.items():
            path = self.folder / name
            if not path.is_file():
                raise InputError(f"{path} is missing; {AGAIN}")
            if (size := path.stat().st_size) != file.bytes:
                raise InputError(f"{path} has {size} bytes instead of {file.bytes}; {AGAIN}")

    def __str__(self) -> str:
        return f"the store {self.folder}"

    @staticmethod
    def plan(
        archive: DataSource,
        task: Task,
        years: Iterable[int] | None = None,
        *,
        moments: bool = False,
        shard_bytes: int = 10**9,
    ) -> Plan:
        """Return what `write` with the same arguments would write: `samples`, `files`, `bytes`; `str()` says it."""
        return Job.of(archive, task, _listed(years), moments, shard_bytes).plan

    @classmethod
    def write(
        cls,
        archive: DataSource,
        task: Task,
        folder: str | Path,
        years: Iterable[int] | None = None,
        *,
        moments: bool = False,
        shard_bytes: int = 10**9,
        progress: Callable[[int, int], None] | None = None,
    ) -> Store:
        """Write the forecasts of `task` that are valid in `years` (None: all) and verified; return the store.

        With `moments` the ensemble is reduced to its mean and spread, M/2 times smaller. Files hold at most
        `shard_bytes`, at least one sample. `progress(done, total)` is called with numbers of samples whenever a file is
        done, and once at the start with what was there already.

        Killed at any moment, the same call goes on: files whose checksum is right are kept, what is half-written is
        removed, and the result is the same byte for byte. A folder of another store is refused (`InputError`), also
        one to which another process is writing. A full disk or Ctrl-C is an `InterruptedRunError` (exit code 3).
        Memory: one sample.
        """
        job = Job.of(archive, task, _listed(years), moments, shard_bytes)
        write(job, Path(folder), progress or (lambda done, total: None))
        return cls(folder)

    def verify(self) -> None:
        """Read every file again; the first whose checksum is wrong is named."""
        for name, file in self._manifest.files.items():
            if not file.describes(self.folder / name):
                raise InputError(f"{self.folder / name} is damaged, its checksum is wrong; {AGAIN}")

    @property
    def grid(self) -> Grid:
        """Where the values lie."""
        return self.contents.grid

    @property
    def moments(self) -> int | None:
        """How many members the two pseudo-members stand for; None: all are there."""
        return len(self.contents.numbers) if self.contents.moments else None

    @property
    def fingerprint(self) -> str:
        """That of the archive from which the store was made."""
        return self.contents.fingerprint

    @cached_property
    def static(self) -> xr.Dataset:
        """All static fields of the archive, (latitude, longitude)."""
        if not self.contents.static:
            return xr.Dataset()
        with xr.open_dataset(self.folder / STATIC, engine="netcdf4") as fields:
            return fields.load()

    def covers(self, years: Collection[int]) -> bool:
        """Whether all forecasts of the archive that are valid in `years` are in the store."""
        return self.contents.years is None or set(years) <= set(self.contents.years)

    def refuse(self, years: Collection[int], moments: bool, further: Collection[Channel] = ()) -> None:
        """Refuse to be asked for what only the archive has: other years of valid time, members instead of moments.

        Forecasts were left out of the store because their start lacks a channel of it. A task that does without these
        `further` channels has those forecasts too.
        """
        if not self.covers(years):
            absent = min(set(years) - set(self.contents.years or ()))
            raise InputError(
                f"{self} was made without {absent}; make one with all years that you want, or leave out data.store"
            )
        if self.contents.left_out and set(further) != set(self.contents.further):
            raise InputError(
                f"{self} was made without {self.contents.left_out} forecasts whose start lacks one of "
                f"{', '.join(map(str, self.contents.further))}; make a store for this task, or leave out data.store"
            )
        if self.contents.moments and not moments:
            raise InputError(
                f"{self} holds only mean and spread of the ensemble, its members are wanted; "
                "make a store without moments, or leave out data.store"
            )

    def forecasts(self, variables: Sequence[Variable], lead_times: Sequence[int], chunks: Chunks = None) -> xr.Dataset:
        """Open the ensemble as (init_time, lead_time, number, [level,] latitude, longitude)."""
        self.refuse((), moments=False, further=self.contents.further)
        return open_cube(Cube.forecasts(self._ensemble(variables, lead_times), lead_times, "mask"), chunks)

    def analyses(self, variables: Sequence[Variable], chunks: Chunks = None) -> xr.Dataset:
        """Open the truth as (time, [level,] latitude, longitude)."""
        return open_cube(Cube.analyses(self._truth(variables), "mask"), chunks)

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the ensemble to read samples from."""
        return CubeFields.forecasts(self._ensemble(variables, lead_times), lead_times, "mask")

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the truth to read samples from."""
        return CubeFields.analyses(self._truth(variables), "mask")

    def _ensemble(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> StoredFields:
        return StoredFields.ensemble(self.folder, self._manifest, variables, lead_times)

    def _truth(self, variables: Sequence[Variable]) -> StoredFields:
        return StoredFields.truth(self.folder, self._manifest, variables)


def source_for(archive: Archive, folder: str | Path | None, years: Collection[int]) -> DataSource:
    """Return the store in `folder` if it has `years`, else the archive; None stands for no store.

    The store must be made from the files that the archive names. Where these are gone, the store stands for them.
    """
    if folder is None:
        return archive
    store = Store(folder)
    if archive.is_there and archive.fingerprint != store.fingerprint:
        raise InputError(
            f"{store} was made from other files than data.archive names now, or these have changed since; "
            "make the store again in another folder, or leave out data.store"
        )
    return store if store.covers(years) else archive


def _listed(years: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if years is None else tuple(years)
