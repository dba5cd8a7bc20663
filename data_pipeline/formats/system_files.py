"""Files of several forecast systems whose members have the same numbers: each system gets numbers of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import FileAddress, Paths, expand_addresses
from data_pipeline.common.messages import joined
from data_pipeline.formats.catalog import Catalog
from data_pipeline.task import Task

NUMBERS_OF_A_SYSTEM = 1000
"""The second system has the member numbers from 1000 on, the third from 2000 on."""


class SystemFiles(tuple[FileAddress, ...]):
    """The files of all systems; `added` is what each of them adds to the numbers of its members."""

    systems: tuple[str, ...]
    added: dict[FileAddress, int]

    @classmethod
    def of(cls, files: Mapping[str, Paths], option: str, systems: Sequence[str] | None = None) -> SystemFiles:
        """Return the files of all systems in `files`. `systems` are the names of all systems in order."""
        names = tuple(files if systems is None else systems)
        added: dict[FileAddress, int] = {}
        for name, paths in files.items():
            check_choice(option, name, names)
            for path in expand_addresses(paths):
                if path in added:
                    raise InputError(f"{option} names {path} for two systems; each needs files of its own")
                added[path] = NUMBERS_OF_A_SYSTEM * names.index(name)
        found = cls(added)
        found.systems, found.added = names, added
        return found

    def numbered(self, catalog: Catalog) -> Catalog:
        """Return a catalog of some of these files in which each member has its own number."""
        rows = catalog.rows.copy()
        if (most := rows["number"].max(initial=0)) >= NUMBERS_OF_A_SYSTEM or rows["number"].min(initial=0) < 0:
            raise InputError(
                f"{catalog} has the member {most}, and files of systems may have the members 0 to "
                f"{NUMBERS_OF_A_SYSTEM - 1}; renumber them, and name the files in a list"
            )
        if other := [path for path in catalog.paths if path not in self.added]:
            raise InputError(f"{other[0]} is read from a copy; name GRIB, NetCDF or Zarr for systems")
        rows["number"] += np.array([self.added[path] for path in catalog.paths])[rows["file"]].astype(np.int32)
        return replace(catalog, rows=rows)  # type: ignore[type-var]

    def check(self, task: Task) -> None:
        """Raise `InputError` unless the groups of a task are these systems, if it has groups."""
        firsts = {name: NUMBERS_OF_A_SYSTEM * k for k, name in enumerate(self.systems)}
        if task.systems and dict(task.systems) != firsts:
            raise InputError(
                f"task.groups is {dict(task.systems)}, and members of the systems {joined(self.systems)} are numbered "
                f"from {joined(firsts.values())} on; set task.groups={firsts}".replace("'", "")
            )


def added_number(files: object, path: object) -> int:
    """Return the number that is added to each member number of a file: 0 without several systems."""
    return files.added[path] if isinstance(files, SystemFiles) else 0  # type: ignore[index]
