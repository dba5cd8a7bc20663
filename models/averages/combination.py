"""Combination of trained correctors into a committee, whose weights validation forecasts may choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say
from data_pipeline.common.progress import Progress, watched
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.sample import Sample
from models.averages.committee import Committee
from models.averages.stacking import EQUAL, validation_cases, weigh
from models.corrector import Corrector
from models.provenance.envelope import Envelope
from models.provenance.training_dates import SEEN, joined_fits, seen_dates, state_fits, valid_days
from models.statistical.cases import add_unfitted


def weigh_on_validation(committee: Corrector, forecasts: ForecastDataset, device: torch.device) -> Tensor:
    """Give a committee the weights of `weigh`, from validation forecasts; print and return them, (K, L, T)."""
    assert isinstance(committee.model, Committee)
    committee.to(device)
    every = validation_cases([*committee.model.correctors], forecasts, device)
    committee.cpu()
    found = [weigh(cases) for cases in watched(every, "fit of the weights: target")]
    weights = torch.tensor([[one.weights for one in of_target] for of_target in found]).permute(2, 1, 0)
    set_weights(committee, weights)
    state_fits(committee.provenance, {"model.weights": valid_days(*forecasts.times())})
    count = len(committee.model.correctors)
    for target, of_target in zip(committee.task.targets, found, strict=True):
        for hours, one in zip(committee.task.lead_times, of_target, strict=True):
            alone = ", ".join(f"{one.tried[str(k)]:.4g}" for k in range(count))
            say(
                f"{target}, {hours} h: weights {', '.join(f'{value:.2f}' for value in one.weights)}; CRPS on the other "
                f"half of the dates {one.crps:.4g} {target.units}, with equal weights {one.tried[EQUAL]:.4g}, of each "
                f"corrector {alone}"
            )
    return weights


def set_weights(committee: Corrector, weights: Tensor) -> None:
    """Give a committee weights (K, L, T)."""
    assert isinstance(committee.model, Committee)
    committee.model.set_weights(weights.tolist())
    committee.spec["weights"] = weights.tolist()


def combine(paths: Sequence[Path], weights: Sequence[float] | None = None) -> Corrector:
    """Return the committee of the correctors in these files, which must agree in `SHARED_PROPERTIES`.

    `weights` has one number for each corrector, with the sum 1, and holds for all targets; None: equal weights.
    """
    correctors = [Corrector.load(path) for path in watched(paths, "reading: corrector")]
    first = correctors[0]
    for path, other in zip(paths, correctors, strict=True):
        for name, read in SHARED_PROPERTIES.items():
            one, another = read(first), read(other)
            if one != another:
                values = "" if name in ("task", "grid", "units, levels and intervals") else f" ({another} and {one})"
                raise InputError(
                    f"{path} and {paths[0]} differ in their {name}{values}; combine correctors of the same "
                    "training data"
                )
        if not torch.allclose(other.static, first.static, rtol=1e-3, atol=1e-6):
            raise InputError(
                f"{path} and {paths[0]} differ in their static fields; combine correctors of the same training data"
            )
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("correctors lists a file twice; list each file once")
    specs = [corrector.spec for corrector in correctors]
    spec: dict[str, Any] = {"_target_": "models.averages.committee.Committee", "specs": specs}
    if weights is not None:
        spec["weights"] = [[[weight] * len(first.task.targets)] * len(first.task.lead_times) for weight in weights]
    provenance = _merge_provenance([corrector.provenance for corrector in correctors])
    committee = Corrector(first.task, first.grid, spec, first.static, provenance, first.meanings)
    committee.envelope = _merge_envelopes([corrector.envelope for corrector in correctors])
    assert isinstance(committee.model, Committee)
    for own, corrector in zip(committee.model.correctors, correctors, strict=True):
        own.load_state_dict(corrector.state_dict())
    committee.eval()
    with Progress("trial of the committee"):
        _check_average(committee, paths)
    return committee


def _merge_envelopes(given: Sequence[Envelope | None]) -> Envelope | None:
    """Return the envelope of all correctors; None if one of them has no envelope."""
    known = [envelope for envelope in given if envelope is not None]
    return reduce(Envelope.merged, known) if len(known) == len(given) else None


def _merge_provenance(given: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return several provenances as one: equal values once, different values as a list, counts as their sum.

    Validation scores are left out, because the score of the committee is not known.
    """
    found: dict[str, Any] = {"runs": [provenance.get("run") for provenance in given]}
    dates = {name: seen_dates(given[0], name) for name in SEEN}
    found |= {f"{name}_dates": seen.to_json() for name, seen in dates.items() if seen is not None}
    state_fits(found, joined_fits({f"model.correctors.{k}": provenance for k, provenance in enumerate(given)}))
    dates_of_splits = (f"{name}_dates" for name in SEEN)
    single = ("fits", "run", "unfitted", "choices", "validation_crps", "validation_crps_raw", *dates_of_splits)
    for key in dict.fromkeys(key for provenance in given for key in provenance if key not in single):
        values = [provenance.get(key) for provenance in given]
        found[key] = values[0] if all(value == values[0] for value in values) else values
    if choices := [choice for provenance in given for choice in provenance.get("choices", [])]:
        found["choices"] = choices
    if counts := [provenance["unfitted"] for provenance in given if "unfitted" in provenance]:
        found["unfitted"] = add_unfitted(counts)
    return found


def _text(dates: Dates | None) -> str | None:
    return None if dates is None else str(dates)


SHARED_PROPERTIES: dict[str, Callable[[Corrector], Any]] = {
    "task": lambda corrector: corrector.task.to_json() | {"name": ""},
    "grid": lambda corrector: corrector.grid,
    "units, levels and intervals": lambda corrector: corrector.meanings,
    "dates of training": lambda corrector: _text(seen_dates(corrector.provenance, "train")),
    "dates of validation": lambda corrector: _text(seen_dates(corrector.provenance, "val")),
    "regridding": lambda corrector: corrector.provenance.get("regridding"),
    "number of members in training": lambda corrector: corrector.provenance.get("members"),
}
"""Properties that all correctors of a committee share, and how to read them; the committee's file has each once."""


@torch.no_grad()
def _check_average(corrector: Corrector, paths: Sequence[Path]) -> None:
    """Correct a forecast of zeros; raise `InputError` for distributions of different kinds or lower bounds."""
    task, shape = corrector.task, corrector.grid.shape
    sample = Sample(
        torch.zeros(1, 2, len(task.channels), *shape),
        torch.zeros(1, len(task.channels), *shape, dtype=torch.bool),
        corrector.static[None],
        torch.zeros(1, len(task.targets), *shape),
        torch.zeros(1, dtype=torch.int64),
        torch.tensor(task.lead_times[:1]),
    )
    corrector(sample)
    assert isinstance(corrector.model, Committee)
    first, *others = [part(sample).core.bound for part in corrector.model.correctors]
    for path, bound in zip(paths[1:], others, strict=True):
        if bound is not None and not torch.allclose(bound, first, rtol=1e-5, atol=1e-9):  # all have one, or none has
            raise InputError(
                f"{path} and {paths[0]} differ in their lower bound (model.lower); combine correctors with one bound"
            )
