"""Installed packages with models: packages with an entry point in the group `deepweather.models`.

The entry point names a module, for example `weathernets`. A `_target_` may name classes of this module and of its
submodules. The YAML files in its folder `conf` are added to those of this project. Nothing is imported here.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path

from data_pipeline.common.errors import InputError

ENTRY_POINT_GROUP = "deepweather.models"


def registered_modules() -> list[str]:
    """Return the names of the modules that installed packages register, sorted."""
    return list(_registered_on(tuple(sys.path)))


@functools.cache
def _registered_on(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules that packages in the folders of `sys.path` register.

    The result is cached: reading the metadata of all installed packages takes 4 ms or more, and the construction of a
    model needs it three times.
    """
    return tuple(sorted({point.module for point in entry_points(group=ENTRY_POINT_GROUP)}))


def conf_folders(own: Path) -> dict[str, Path]:
    """Return the folder `conf` of each registered module that has one; `own` is the folder of this project.

    Raises an `InputError` if two folders have the same YAML file, because one would hide the other.
    """
    found: dict[str, Path] = {}
    owners = dict.fromkeys(_files(own), "deepweather")
    for module in registered_modules():
        folder = _folder(module)
        if folder is None or not (folder / "conf").is_dir():
            continue
        found[module] = folder / "conf"
        for file in _files(found[module]):
            if file in owners:
                raise InputError(
                    f"the installed package {module} and {owners[file]} both have a configuration file {file}; "
                    "rename the file of the package"
                )
            owners[file] = module
    return found


def _folder(module: str) -> Path | None:
    """Return the folder of a module; None if the module is a single file or is not found."""
    first, *rest = module.split(".")
    spec = importlib.util.find_spec(first)  # find_spec of a dotted name would import its first part
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0], *rest)


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml"))
