"""Construct the classes and functions that `_target_` names, from allowed packages only.

Allowed are `models`, the modules that installed packages register (`data_pipeline.common.packages`), and `torch.nn`
for parts of a model. A corrector file may come from anywhere: loading it must not run arbitrary code that it names.
"""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from data_pipeline.common.checks import construct
from data_pipeline.common.errors import InputError
from data_pipeline.common.packages import ENTRY_POINT_GROUP, registered_modules


def model_class(target: object) -> type[nn.Module]:
    """Return the class of a model, which must be in `models` or in a registered module.

    >>> model_class("models.statistical.raw.Raw").__name__
    'Raw'
    """
    found = _import("model", str(target), ["models", *registered_modules()])
    if not _is_module_class(found):
        raise InputError(f"{target} is not a model; the models are listed in conf/model")
    return found


def build_part(option: str, node: object, **arguments: Any) -> nn.Module:
    """Return the part of a model that `node`, the value of an option, describes by `_target_` and arguments.

    Arguments may be descriptions themselves. `_args_` is a list of positional arguments. `arguments` are added by the
    caller. `_target_` is a class in `torch.nn` or `models`, or a class or function in a registered module.

    >>> build_part("model.x", {"_target_": "torch.nn.Linear", "out_features": 3}, in_features=2)
    Linear(in_features=2, out_features=3, bias=True)
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise InputError(f"{option} must be a description such as {{_target_: torch.nn.Conv2d, ...}}, got {node!r}")
    target, others = str(node["_target_"]), registered_modules()
    found = _import(f"{option}:", target, ["models", "torch.nn", *others])
    if not _is_module_class(found) and not (inspect.isfunction(found) and _is_within(target, others)):
        raise InputError(f"{option}: {target} is not a torch.nn.Module; name a class of torch.nn.Module")
    own = {name: _build_inner(f"{option}.{name}", value) for name, value in node.items() if name != "_target_"}
    positional = own.pop("_args_", [])
    if taken := next((name for name in arguments if name in own), None):
        raise InputError(f"{option}.{taken} is set by the model itself; remove it")
    part = construct(option, partial(found, *positional), own | arguments)
    if not isinstance(part, nn.Module):
        raise InputError(f"{option}: {target} returned a {type(part).__name__} instead of a torch.nn.Module")
    return part


def _is_module_class(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, nn.Module)


def _build_inner(option: str, value: Any) -> Any:
    """Return an argument with all descriptions inside it replaced by the parts that they describe."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build_part(option, value)
        return {name: _build_inner(f"{option}.{name}", each) for name, each in value.items()}
    if isinstance(value, list):
        return [_build_inner(f"{option}[{index}]", each) for index, each in enumerate(value)]
    return value


def _is_within(name: str, packages: list[str]) -> bool:
    return any(name.startswith(f"{package}.") for package in packages)


def _import(what: str, target: str, packages: list[str]) -> Any:
    """Return the object that `target` names, or None if its module only imported it; `what` begins error messages."""
    if not _is_within(target, packages):
        raise InputError(
            f"{what} {target} is not in {', '.join(packages)}, the only packages that a _target_ may name here; "
            f"to allow another, install a package that registers it in the entry-point group "
            f"{ENTRY_POINT_GROUP} (docs/models.md)"
        )
    name, _, attribute = target.rpartition(".")
    missing = InputError(f"{what} {target} does not exist in this version; the models are listed in conf/model")
    try:
        module = importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise missing from None
        raise InputError(f"{what} {target} cannot be imported: {_describe_error(error)}") from error
    if not hasattr(module, attribute):
        raise missing
    found = getattr(module, attribute)
    own = [package.partition(".")[0] for package in packages if _is_within(target, [package])]
    return found if _is_within(f"{getattr(found, '__module__', '')}.", own) else None


def _describe_error(error: Exception) -> str:
    """Return file, line, type and text of an error: the line with the wrong syntax, or the line that failed."""
    if isinstance(error, SyntaxError):
        place, text = (error.filename, error.lineno), error.msg
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "<frozen" not in frame.filename]
        place, text = (frames[-1].filename, frames[-1].lineno), str(error)
    return f"{place[0]}, line {place[1]}: {type(error).__name__}: {text}"
