"""Check and build the objects that options of `trainer` describe by `_target_` and arguments.

    trainer.optimizer: {_target_: torch.optim.SGD, momentum: 0.9}

The checks need neither data nor a model, so a misspelt name ends a run before data are read. The user types these
options, so they may name any installed package, unlike the model in a corrector file (`models.construct`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from data_pipeline.common.errors import InputError
from models.construct import construct_spec, import_target, replace_mappings

STEPS = "_steps_"
"""`{_steps_: 0.1}` stands for a tenth of all steps of the run, whose number depends on the data."""


def check_spec(option: str, spec: Any, kind: type, *, given: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Return the class or function that `spec` names; raise `InputError` for a wrong name, class or argument.

    `kind` is the required class of the object. `given` holds the arguments that the project adds.
    """
    found: Callable[..., Any] = construct_spec(option, spec, kind, _import_any, given=given, only_check=True)
    return found


def build_spec(
    option: str, spec: Any, kind: type, *, given: Mapping[str, Any] | None = None, steps: int | None = None
) -> Any:
    """Return the object that `spec` describes; `steps` is the total of which `{_steps_: fraction}` is a fraction."""
    spec = replace_mappings(option, spec, STEPS, partial(_fraction_of_steps, steps=steps))
    try:
        return construct_spec(option, spec, kind, _import_any, given=given)
    except InputError:
        raise
    except Exception as error:  # libraries raise any class for a wrong value
        why = error or type(error).__name__
        raise InputError(f"{option}: {spec['_target_']} cannot be created: {why}") from error


def _import_any(option: str, target: str) -> Any:
    if not callable(found := import_target(f"{option}:", target)):
        raise InputError(f"{option}: {target} is neither a class nor a function")
    return found


def _fraction_of_steps(option: str, value: Mapping[str, Any], *, steps: int | None) -> int:
    fraction = value[STEPS]
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise InputError(f"{option}: {STEPS} must be a fraction of all steps from 0 to 1, got {fraction!r}")
    if steps is None:
        raise InputError(f"{option}: {STEPS} is allowed in trainer.scheduler only")
    return max(1, round(fraction * steps)) if fraction else 0
