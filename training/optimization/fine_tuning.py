"""Fine-tuning: training starts with the weights of a corrector that was trained on other data (option `from`)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from data_pipeline.common.errors import InputError
from data_pipeline.common.identity import sha256_of
from data_pipeline.dates import Dates
from data_pipeline.task import Task
from models.construct import model_class
from models.corrector import Corrector
from models.laws import with_laws
from models.provenance.training_dates import all_seen_dates, state_fits
from training.optimization.optimizer import has_value_per_cell

OF_TRAINING = ("dropout", "smoothness_penalty", "trained_networks")
"""Options of models that change the training only, not the meaning of a weight; two runs may differ in them."""


class PretrainedWeights:
    """The weights of the corrector in the file `path`, for a run that trains the model `spec` on `task`.

    The corrector and the run must have the same channels, static fields, targets and options of the model, because each
    weight belongs to one of these; an `InputError` names the differences. Grid, lead times, dates and data may differ.
    """

    def __init__(self, path: str, task: Task, spec: Mapping[str, Any]) -> None:
        self.path, self._first = path, Corrector.load(path)
        theirs = self._first
        if next(theirs.model.parameters(), None) is None:
            raise InputError(
                f"from: {path} holds a {type(theirs.model).__name__}, which is fitted in closed form and has no "
                "weights to start from; leave out from"
            )
        _check_names("channels", "task.inputs and task.formulas", path, theirs.task.channels, task.channels)
        _check_names("static fields", "data.static", path, theirs.task.static_names, task.static_names)
        _check_names("targets", "task.targets", path, theirs.task.targets, task.targets)
        counts = [len(each.lead_times) for each in (theirs.task, task)]
        if (counts[0] > 1) != (counts[1] > 1):
            raise InputError(
                f"from: {path} was trained for {counts[0]} lead times and this run for {counts[1]}, and networks have "
                "the lead time as an input if there are several; give task.lead_times several times, or one, in both"
            )
        _check_options(path, theirs.spec, with_laws(spec, task))
        if not self.dates.spans:
            raise InputError(f"from: {path} does not say on which dates it was trained; train it again")

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The provenance of the file."""
        return self._first.provenance

    @property
    def dates(self) -> Dates:
        """All dates that the corrector has seen, including dates of the corrector that its training started from."""
        return all_seen_dates(self._first.provenance)

    def copy_to(self, corrector: Corrector) -> list[str]:
        """Copy the weights to a fitted `corrector`; return lines for the user that say which were taken.

        Weights are the parameters of the model, and the statistics of batch normalisation, to which the parameters are
        adapted. Weights with a value per cell are copied only if both grids are equal. Everything that is fitted before
        the first step keeps its values: normaliser, error climate, EMOS.
        """
        ours, theirs = corrector.state_dict(), self._first.state_dict()
        reasons: dict[str, list[str]] = {}
        taken = []
        for name, per_cell in _weights(corrector):
            if per_cell and corrector.grid != self._first.grid:
                reasons.setdefault(f"values of single cells of {self._first.grid}", []).append(name)
            elif name not in theirs:
                reasons.setdefault("not in the file", []).append(name)
            elif theirs[name].shape != ours[name].shape:
                reasons.setdefault("another size on this grid", []).append(name)
            else:
                taken.append(name)
        if not taken:
            raise InputError(
                f"from: no weight of {self.path} can be taken on {corrector.grid} ({'; '.join(reasons)}); "
                "leave out from"
            )
        corrector.load_state_dict(ours | {name: theirs[name].to(ours[name]) for name in taken})
        left = sum(map(len, reasons.values()))
        corrector.provenance["from"] = {
            "hash": sha256_of(self.path)[:16], "run": self._first.provenance.get("run"),
            "taken": len(taken), "not_taken": sorted(name for names in reasons.values() for name in names),
        }  # fmt: skip
        state_fits(corrector.provenance, {"pre-training": self.dates})
        lines = [
            f"from {self.path}: {len(taken)} of {len(taken) + left} tensors of weights taken "
            f"({_numbers(ours, taken)} numbers); fitted to this run's data: {', '.join(corrector.fitted_parts)}"
        ]
        for reason, names in reasons.items():
            lines.append(f"not taken ({reason}): {', '.join(names)} ({_numbers(ours, names)} numbers)")
        return lines


def _weights(corrector: Corrector) -> Iterator[tuple[str, bool]]:
    """Yield the name of each tensor that a training learns, and whether it has values for every cell."""
    learnt = corrector.state_dict().keys()
    for place, module in corrector.model.named_modules(prefix="model"):
        for name, parameter in module.named_parameters(recurse=False):
            yield f"{place}.{name}", has_value_per_cell(module, parameter, corrector.grid.shape)
        if isinstance(module, _NormBase):
            for name, _ in module.named_buffers(recurse=False):
                if f"{place}.{name}" in learnt:
                    yield f"{place}.{name}", False


def _numbers(state: Mapping[str, Tensor], names: Sequence[str]) -> str:
    return f"{sum(state[name].numel() for name in names):,}"


def _check_names(title: str, option: str, path: str, theirs: Sequence[object], ours: Sequence[object]) -> None:
    """Raise an `InputError` that says which names only one of the two has."""
    first, second = ([str(name) for name in names] for names in (theirs, ours))
    if first == second:
        return
    only = [
        f"{', '.join(names)} only in {where}"
        for names, where in (
            ([name for name in first if name not in second], "the file"),
            ([name for name in second if name not in first], "this run"),
        )
        if names
    ]
    found = " and ".join(only) or f"in another order, {', '.join(first)}"
    raise InputError(f"from: {path} has other {title} ({found}); give {option} those of the file")


def _check_options(path: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise an `InputError` that names all options of the model in which the file and the run differ."""
    if theirs["_target_"] != ours["_target_"]:
        raise InputError(f"from: {path} holds a {theirs['_target_']}, and this run trains a {ours['_target_']}; "
                         "choose the model of the file")  # fmt: skip
    signature = inspect.signature(model_class(ours["_target_"])).parameters.values()
    defaults = {each.name: each.default for each in signature if each.default is not inspect.Parameter.empty}
    first, second = ({"power": 1} | defaults | dict(spec) for spec in (theirs, ours))
    different = [
        name
        for name in dict.fromkeys((*first, *second))
        if name not in OF_TRAINING and first.get(name) != second.get(name)
    ]
    if different:
        wanted = " ".join(f"model.{name}={_as_option(first.get(name))}" for name in different)
        raise InputError(f"from: {path} has other options of the model; set {wanted}, as in the file")


def _as_option(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
