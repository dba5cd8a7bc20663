"""Options in `conf/` as plain values, for Python programs that name a choice in a group, such as the model `unet`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from data_pipeline.common.errors import InputError
from data_pipeline.common.packages import conf_folders

CONF = Path(__file__).parents[2] / "conf"
"""The folder of the YAML files; the YAML files of installed packages that register models are added."""


def named_options(group: str, choice: str) -> dict[str, Any]:
    """Return the options in `GROUP/CHOICE.yaml`. Raises `InputError` if there is no such file.

    >>> named_options("model", "raw")
    {'_target_': 'models.statistical.raw.Raw'}
    """
    folders = [folder / group for folder in (CONF, *conf_folders(CONF).values())]
    for folder in folders:
        if (folder / f"{choice}.yaml").is_file():
            return options_in(folder, choice)
    known = sorted(file.stem for folder in folders for file in folder.glob("*.yaml"))
    raise InputError(f"there is no {group} {choice!r}; choose one of {', '.join(known)}")


def options_in(folder: Path, choice: str) -> dict[str, Any]:
    """Return the options of a file; options that it lacks come from the files named in its `defaults`."""
    own = dict(yaml.safe_load((folder / f"{choice}.yaml").read_text()))
    found: dict[str, Any] = {}
    for base in own.pop("defaults", []):
        found = merged(found, options_in(folder, base))
    return merged(found, own)


def described(group: str, value: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group.

    `value` is a name, a mapping {group: name, option: value, ...}, or options with a `_target_`, returned as they are.

    >>> described("model", {"model": "unet", "width": 4})["width"]
    4
    """
    if isinstance(value, str):
        return named_options(group, value)
    if not isinstance(value, Mapping) or not {"_target_", group} & {*value}:
        raise InputError(f"{group} must be a name, or a dict such as {{{group!r}: NAME, option: value}}, got {value!r}")
    if "_target_" in value:
        return dict(value)
    base = named_options(group, str(value[group]))
    changes = {name: option for name, option in value.items() if name != group}
    if unknown := [name for name in changes if name not in base]:
        raise InputError(f"{group} {value[group]} has no option {unknown[0]!r}; it has {', '.join(list(base)[1:])}")
    return merged(base, changes)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `changes`; nested dicts are merged, too."""
    found = dict(base)
    for name, value in changes.items():
        inner = found.get(name)
        found[name] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return found
