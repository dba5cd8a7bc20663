"""Laws: the options of a model that follow from the distributions of its targets, `data_pipeline.variables.parameters`.

A corrector file holds the options that its run used, so that a change of the table does not change a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from data_pipeline.common.checks import per_target
from data_pipeline.task import Task
from models.construct import model_class
from models.distribution import FAMILIES, GAMMA
from models.distribution.location_scale import Bounded

_EMOS = "models.statistical.emos.EMOS"


def with_laws(spec: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """Return the description of a model with the laws of the targets where an option is missing or null.

    A model whose option `family` or `head` is `normal` by default gets the family, the power and, if it has these
    options, the lower bound and the `scale` that suits the power: `log` below 1, else `quadratic`. Each option has one
    value if it is the same for all targets, else a list. A model of several models completes its own description
    (`completed`). All others stay as they are.
    """
    if complete_parts := getattr(model_class(spec.get("_target_")), "completed", None):
        return dict(complete_parts(spec, task))
    parameters = inspect.signature(model_class(spec.get("_target_"))).parameters
    kind = next((n for n in ("family", "head") if n in parameters and parameters[n].default == "normal"), None)
    if kind is None:
        return dict(spec)
    laws, count = [target.law for target in task.targets], len(task.targets)
    found = dict(spec)

    def complete(option: str, own: Sequence[Any]) -> list[Any]:
        if found.get(option) is None:
            found[option] = own[0] if all(each == own[0] for each in own) else list(own)
        return per_target(found[option], count, option)

    families = complete(kind, [law.family for law in laws])
    powers = complete("power", [law.power for law in laws])
    if "lower" in parameters:
        bounds = [target.bounds[0] if is_bounded(f) else None for f, target in zip(families, task.targets, strict=True)]
        complete("lower", bounds)
    if "scale" in parameters:
        complete("scale", ["log" if power != 1 else "quadratic" for power in powers])
    if isinstance(baseline := found.get("baseline"), Mapping):
        options = with_laws({"_target_": _EMOS, "power": found["power"]} | dict(baseline), task)
        found["baseline"] = {name: value for name, value in options.items() if name not in ("_target_", "power")}
    return found


def is_bounded(family: object) -> bool:
    """Return whether a family has a lower bound."""
    return family == GAMMA or (
        isinstance(family, str) and family in FAMILIES and issubclass(FAMILIES[str(family)], Bounded)
    )


def describe_laws(spec: Mapping[str, Any], task: Task) -> str:
    """Return the law of each target in one line, such as `tp: censored_logistic of the power 0.5`; "" without one."""
    kind = next((name for name in ("family", "head") if name in spec), None)
    if kind is None:
        return ""
    families, powers = (per_target(spec.get(name), len(task.targets)) for name in (kind, "power"))
    return "; ".join(
        f"{target}: {family}" + (f" of the power {power:g}" if power != 1 else "")
        for target, family, power in zip(task.targets, families, powers, strict=True)
    )
