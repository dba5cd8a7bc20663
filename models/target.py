"""Target: import what a `_target_` names, but only from packages that may be named there.

These are `models`, the modules that installed packages register (`data_pipeline.common.packages`), and `torch.nn` for
parts of a model. A corrector file may come from anywhere: opening it must not run whatever its text names.
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
from data_pipeline.common.packages import GROUP, registered_modules


def model_class(target: object) -> type[nn.Module]:
    """Return the class of a model: one of `models` or of a registered module."""
    found = _imported("model", str(target), ["models", *registered_modules()])
    if not _is_module(found):
        raise InputError(f"{target} is not a model; see conf/model for the models there are")
    return found


def part(option: str, node: object, **more: Any) -> nn.Module:
    """Return the part of a model that `node`, the value of an option, describes by `_target_` and arguments.

    Arguments may be such descriptions themselves; `_args_` is a list of arguments without name, and `more` are further
    ones. `_target_` is a class of `torch.nn` or `models`, or a class or function of a registered module.
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise InputError(f"{option} must be a description such as {{_target_: torch.nn.Conv2d, ...}}, got {node!r}")
    target, others = str(node["_target_"]), registered_modules()
    found = _imported(f"{option}:", target, ["models", "torch.nn", *others])
    if not _is_module(found) and not (inspect.isfunction(found) and _within(target, others)):
        raise InputError(f"{option}: {target} is not a torch.nn.Module; name the class of one")
    arguments = {name: _resolved(f"{option}.{name}", value) for name, value in node.items() if name != "_target_"}
    positional = arguments.pop("_args_", [])
    if taken := next((name for name in more if name in arguments), None):
        raise InputError(f"{option}.{taken} is given by the model itself; leave it out")
    result = construct(option, partial(found, *positional), arguments | more)
    if not isinstance(result, nn.Module):
        raise InputError(f"{option}: {target} returned a {type(result).__name__} in place of a torch.nn.Module")
    return result


def _is_module(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, nn.Module)


def _resolved(option: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return part(option, value)
        return {name: _resolved(f"{option}.{name}", each) for name, each in value.items()}
    if isinstance(value, list):
        return [_resolved(f"{option}[{index}]", each) for index, each in enumerate(value)]
    return value


def _within(name: str, roots: list[str]) -> bool:
    return any(name.startswith(f"{root}.") for root in roots)


def _imported(what: str, target: str, roots: list[str]) -> Any:
    """Return what `target` names, or None for something that its module has only imported; `what` is for errors."""
    if not _within(target, roots):
        raise InputError(
            f"{what} {target} is not in {', '.join(roots)}, the only packages that a _target_ may name here; to allow "
            f"another one, install a package that registers it by an entry point in the group {GROUP} (docs/models.md)"
        )
    name, _, attribute = target.rpartition(".")
    missing = InputError(f"{what} {target} does not exist in this version; see conf/model for the models there are")
    try:
        module = importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise missing from None
        raise InputError(f"{what} {target} cannot be imported: {_cause(error)}") from error
    if not hasattr(module, attribute):
        raise missing
    found = getattr(module, attribute)
    own = [root.partition(".")[0] for root in roots if _within(target, [root])]
    return found if _within(f"{getattr(found, '__module__', '')}.", own) else None


def _cause(error: Exception) -> str:
    """Return the error's place and text: where the file was wrong, or the line whose import failed."""
    if isinstance(error, SyntaxError):
        place, text = (error.filename, error.lineno), error.msg
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "<frozen" not in frame.filename]
        place, text = (frames[-1].filename, frames[-1].lineno), str(error)
    return f"{place[0]}, line {place[1]}: {type(error).__name__}: {text}"
