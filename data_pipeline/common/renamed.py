"""Names that changed since the last version: options of the command line, and classes that corrector files name.

Old spellings work for one version with a one-line warning, so that scripts and corrector files stay usable. The tables
are emptied when the next version is released.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

OPTIONS: dict[str, str] = {}
"""Old option to new option of the command line, such as `trainer.enough` to `trainer.early_stop_below`."""

CHOICES: dict[str, str] = {}
"""Old to new choice of a group of options, such as `loss=apart` to `loss=separate`."""

MODEL_OPTIONS: dict[str, str] = {}
"""Old to new option of a model or of its parts, on the command line and in corrector files."""

STATISTICAL = ("emos", "boosting", "regression", "climatology", "raw")
NETWORKS = ("backbone", "lenet", "mlp", "unet", "transformer", "poet", "deep_weather", "ens10", "heat")
LAYERS = {"spatial.normalization": "layers.norms", "spatial.local": "layers.locally_connected"}
MODULES = (
    {f"models.{name}": f"models.statistical.{name}" for name in STATISTICAL}
    | {f"models.{name}": f"models.networks.{name}" for name in NETWORKS}
    | {f"models.{old}": f"models.{new}" for old, new in LAYERS.items()}
    | {"models.spatial": "models.layers"}
)
"""Old to new module of the classes that a `_target_` may name."""


def current_argument(argument: str) -> tuple[str, str | None]:
    """Return a command-line argument with its current name, and the warning if the name was old.

    >>> MODEL_OPTIONS["depht"] = "depth"
    >>> current_argument("model.depht=3")
    ('model.depth=3', 'option model.depht is now called model.depth; the old name will be removed')
    >>> current_argument("model.depth=3")
    ('model.depth=3', None)
    >>> del MODEL_OPTIONS["depht"]
    """
    prefix, name, rest = re.fullmatch(r"(~|\+{0,2})([^=]*)(.*)", argument, re.DOTALL).groups()  # type: ignore[union-attr]
    new = current_option(name)
    if new == name and (choice := CHOICES.get(name + rest)):
        return prefix + choice, f"{name}{rest} is now written {choice}; the old name will be removed"
    if new == name:
        return argument, None
    return prefix + new + rest, f"option {name} is now called {new}; the old name will be removed"


def current_option(name: str) -> str:
    """Return the current name of an option, the name itself where it is current or unknown."""
    if name in OPTIONS:
        return OPTIONS[name]
    group, *parts = name.split(".")
    return ".".join([group, *(MODEL_OPTIONS.get(part, part) for part in parts)]) if group == "model" else name


def current_arguments(arguments: list[str]) -> list[str]:
    """Return command-line arguments with current names; print a warning for each old name."""
    current = []
    for argument in arguments:
        renamed, warning = current_argument(argument)
        if warning:
            print(f"warning: {warning}", file=sys.stderr, flush=True)
        current.append(renamed)
    return current


def current_spec(spec: Any) -> Any:
    """Return the description of a model, as an older version saved it, with current classes and options.

    >>> current_spec({"_target_": "models.unet.UNet", "width": 16})
    {'_target_': 'models.networks.unet.UNet', 'width': 16}
    """
    if isinstance(spec, Mapping):
        found = {MODEL_OPTIONS.get(name, name): current_spec(value) for name, value in spec.items()}
        if isinstance(target := found.get("_target_"), str):
            found["_target_"] = _current_class(target)
        return found
    return [current_spec(value) for value in spec] if isinstance(spec, list) else spec


def _current_class(target: str) -> str:
    """Return the current dotted path of a class; the longest old module name that fits decides."""
    for old in sorted(MODULES, key=len, reverse=True):
        if target.startswith(f"{old}."):
            return MODULES[old] + target[len(old) :]
    return target
