"""Construct the objects that `_target_` and arguments describe: models and their parts, and options of the trainer.

A corrector file may come from anywhere: loading it must not run arbitrary code that it names. So models and parts are
imported from `models`, the modules that installed packages register (`data_pipeline.common.packages`), and, for parts,
`torch.nn`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from data_pipeline.common.checks import check_options
from data_pipeline.common.errors import InputError
from data_pipeline.common.packages import ENTRY_POINT_GROUP, registered_modules


def model_class(target: object) -> type[nn.Module]:
    """Return the class of a model, which must be in `models` or in a registered module.

    >>> model_class("models.statistical.raw.Raw").__name__
    'Raw'
    """
    found = _import_allowed("model", str(target), ["models", *registered_modules()])
    if not _is_module_class(found):
        raise InputError(f"{target} is not a model; the models are listed in conf/model")
    return found


def build_part(option: str, node: Any, **arguments: Any) -> nn.Module:
    """Return the part of a model that `node`, the value of an option, describes; `arguments` are added by the caller.

    `_target_` is a class in `torch.nn` or `models`, or a class or function in a registered module.

    >>> build_part("model.x", {"_target_": "torch.nn.Linear", "out_features": 3}, in_features=2)
    Linear(in_features=2, out_features=3, bias=True)
    """
    if isinstance(node, Mapping):
        if taken := next((name for name in arguments if name in node), None):
            raise InputError(f"{option}.{taken} is set by the model itself; remove it")
        node = {**node, **arguments}
    part: nn.Module = construct_spec(option, node, nn.Module, _import_part, nn.Module)
    return part


def construct_spec(
    option: str,
    spec: Any,
    kind: type,
    load: Callable[[str, str], Any],
    inner: type = object,
    given: Mapping[str, Any] | None = None,
    only_check: bool = False,
) -> Any:
    """Return the object of the class `kind` that `spec`, `{_target_: package.Class, argument: value, ...}`, describes.

    Arguments may be specs themselves, of the class `inner`. `_args_` is a list of positional arguments. `load(option,
    target)` returns the class or function that `_target_` names. An argument of `given` is passed if the class has a
    parameter of that name and the spec does not set it. With `only_check` the class or function is returned. A wrong
    name, class or argument raises `InputError`; other errors of constructors are passed on.
    """
    if not isinstance(spec, Mapping) or not isinstance(spec.get("_target_"), str):
        raise InputError(f"{option} must be {{_target_: package.Class, argument: value, ...}}, got {spec!r}")
    target = spec["_target_"]
    found = load(option, target)
    if inspect.isclass(found) and not issubclass(found, kind):
        raise InputError(f"{option}: {target} is not a {kind.__name__}")

    def of_inner(place: str, each: Any) -> Any:
        return construct_spec(place, each, inner, load, inner, given, only_check)

    values = {name: replace_mappings(f"{option}.{name}", each, "_target_", of_inner) for name, each in spec.items()}
    del values["_target_"]
    call = partial(found, *values.pop("_args_", ()))
    parameters = inspect.signature(call).parameters
    values = {name: value for name, value in (given or {}).items() if name in parameters} | values
    check_options(option, call, values)
    if only_check:
        return found
    made = call(**values)
    if not isinstance(made, kind):
        raise InputError(f"{option}: {target} returns a {type(made).__name__}, not a {kind.__name__}")
    return made


def replace_mappings(place: str, value: Any, key: str, replace: Callable[[str, Any], Any]) -> Any:
    """Return an option with `replace(place, mapping)` instead of each mapping inside it that has the key `key`."""
    if isinstance(value, Mapping):
        if key in value:
            return replace(place, value)
        return {name: replace_mappings(f"{place}.{name}", inner, key, replace) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [replace_mappings(f"{place}[{index}]", inner, key, replace) for index, inner in enumerate(value)]
    return value


def import_target(what: str, target: str, hint: str = "") -> Any:
    """Return the object that `target` names; `what` begins error messages.

    A missing object raises `InputError`; its message ends with a similar name in the module, else with `hint`.
    """
    name, _, attribute = target.rpartition(".")
    if not name:
        raise InputError(f"{what} _target_ must be package.Class, got {target!r}")
    try:
        module = importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise InputError(f"{what} {target} does not exist{hint}") from None
        raise InputError(f"{what} {target} cannot be imported: {_describe_error(error)}") from error
    if not hasattr(module, attribute):
        public = {known.lower(): known for known in dir(module) if known[0] != "_"}
        if close := difflib.get_close_matches(attribute.lower(), list(public), n=1):
            hint = f"; did you mean {name}.{public[close[0]]}?"
        raise InputError(f"{what} {target} does not exist{hint}")
    return getattr(module, attribute)


def _import_part(option: str, target: str) -> Any:
    others = registered_modules()
    found = _import_allowed(f"{option}:", target, ["models", "torch.nn", *others])
    if not _is_module_class(found) and not (inspect.isfunction(found) and _is_within(target, others)):
        raise InputError(f"{option}: {target} is not a torch.nn.Module; name a class of torch.nn.Module")
    return found


def _import_allowed(what: str, target: str, packages: list[str]) -> Any:
    """Return the object that `target` names, or None if it was only imported there; `what` begins error messages."""
    if not _is_within(target, packages):
        raise InputError(
            f"{what} {target} is not in {', '.join(packages)}, the only packages that a _target_ may name here; "
            f"to allow another, install a package that registers it in the entry-point group "
            f"{ENTRY_POINT_GROUP} (docs/models.md)"
        )
    found = import_target(what, target, " in this version; the models are listed in conf/model")
    own = [package.partition(".")[0] for package in packages if _is_within(target, [package])]
    return found if _is_within(f"{getattr(found, '__module__', '')}.", own) else None


def _is_module_class(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, nn.Module)


def _is_within(name: str, packages: list[str]) -> bool:
    return any(name.startswith(f"{package}.") for package in packages)


def _describe_error(error: Exception) -> str:
    """Return file, line, type and text of an error: the line with the wrong syntax, or the line that failed."""
    if isinstance(error, SyntaxError):
        place, text = (error.filename, error.lineno), error.msg
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "<frozen" not in frame.filename]
        place, text = (frames[-1].filename, frames[-1].lineno), str(error)
    return f"{place[0]}, line {place[1]}: {type(error).__name__}: {text}"
