"""Objects that the options of `trainer` describe by `_target_` and arguments: `check_spec` and `build_spec`.

    trainer.optimizer: {_target_: torch.optim.SGD, momentum: 0.9}

The checks need neither data nor a model, so a misspelt name ends a run before data are read. `models.construct` builds
parts of models in the same way, but only imports from packages that may be named in a corrector file.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from data_pipeline.common.errors import InputError

STEPS = "_steps_"
"""`{_steps_: 0.1}` stands for a tenth of all steps of the run, whose number depends on the data."""


def check_spec(option: str, spec: Any, kind: type, *, given: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Return the class or function that `spec` names; raise `InputError` for a wrong name, class or argument.

    `kind` is the required class of the object. `given` holds the arguments that the project adds. Specs inside `spec`
    are checked too.
    """
    if not isinstance(spec, Mapping) or not isinstance(spec.get("_target_"), str):
        raise InputError(f"{option} must be {{_target_: package.Class, argument: value, ...}}, got {spec!r}")
    made = _imported(option, spec["_target_"])
    if inspect.isclass(made) and not issubclass(made, kind):
        raise InputError(f"{option}: {spec['_target_']} is not a {kind.__name__}")
    _arguments(option, spec, made, set(given or {}))
    for name, inner in _inside(spec):
        check_spec(f"{option}.{name}", inner, object, given=given)
    return made


def build_spec(
    option: str,
    spec: Mapping[str, Any],
    kind: type,
    *,
    given: Mapping[str, Any] | None = None,
    steps: int | None = None,
) -> Any:
    """Return the object that `spec` describes.

    An argument of `given` is passed if the class has a parameter of that name and `spec` does not set it. `steps` is
    the total of which `{_steps_: fraction}` is a fraction.
    """
    given = dict(given or {})
    found = check_spec(option, spec, kind, given=given)

    def value(of: Any) -> Any:
        if isinstance(of, Mapping) and "_target_" in of:
            return build_spec(option, of, object, given=given, steps=steps)
        if isinstance(of, Mapping) and set(of) == {STEPS}:
            return _fraction_of_steps(option, of[STEPS], steps)
        if isinstance(of, Mapping):
            return {name: value(inner) for name, inner in of.items()}
        if isinstance(of, list | tuple):
            return [value(inner) for inner in of]
        return of

    arguments = {name: value(inner) for name, inner in spec.items() if name != "_target_"}
    parameters = inspect.signature(found).parameters
    added = {name: inner for name, inner in given.items() if name in parameters and name not in arguments}
    try:
        made = found(**arguments, **added)
    except InputError:
        raise
    except Exception as error:  # libraries raise any class for a wrong value
        raise InputError(f"{option}: {spec['_target_']} cannot be created: {error or type(error).__name__}") from error
    if not isinstance(made, kind):
        raise InputError(f"{option}: {spec['_target_']} returns a {type(made).__name__}, not a {kind.__name__}")
    return made


def _imported(option: str, target: str) -> Callable[..., Any]:
    module_name, _, name = target.rpartition(".")
    module: Any = None
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"{option}: {target} cannot be imported: {error}") from error
    except ValueError:
        raise InputError(f"{option}: _target_ must be package.Class, got {target!r}") from None
    if not callable(found := getattr(module, name, None)):
        public = {known.lower(): known for known in dir(module) if known[0] != "_"}
        close = difflib.get_close_matches(name.lower(), list(public), n=1)
        hint = f"; did you mean {module_name}.{public[close[0]]}?" if close else ""
        raise InputError(f"{option}: there is no {target}{hint}")
    return found


def _arguments(option: str, spec: Mapping[str, Any], made: Callable[..., Any], given: set[str]) -> None:
    parameters = inspect.signature(made).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_POSITIONAL]
    for name in spec:
        if name != "_target_" and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known) or 'none'}"
            raise InputError(f"{option}: {spec['_target_']} has no argument {name!r}; {hint}")
    needed = [
        name
        for name in known
        if parameters[name].default is inspect.Parameter.empty and name not in spec and name not in given
    ]
    if needed:
        raise InputError(f"{option}: {spec['_target_']} needs the argument {needed[0]!r}; add it to {option}")


def _inside(value: Any, name: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the specs inside a spec, with their dotted path."""
    items: Any = ()
    if isinstance(value, Mapping):
        items = ((str(key), inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        items = ((str(index), inner) for index, inner in enumerate(value))
    for key, inner in items:
        place = f"{name}.{key}" if name else key
        if isinstance(inner, Mapping) and "_target_" in inner:
            yield place, inner
        else:
            yield from _inside(inner, place)


def _fraction_of_steps(option: str, fraction: Any, steps: int | None) -> int:
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise InputError(f"{option}: {STEPS} must be a fraction of all steps from 0 to 1, got {fraction!r}")
    if steps is None:
        raise InputError(f"{option}: {STEPS} is allowed in trainer.scheduler only")
    return max(1, round(fraction * steps)) if fraction else 0
