"""The verb `combine`: makes one corrector of several, which forecasts the average of their forecasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from conf import build, plain, verb
from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import warn
from data_pipeline.common.progress import Progress, watched
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.sample import Sample
from data_pipeline.store import choose_source
from data_pipeline.variables.meaning import differences
from models.committee import Committee
from models.committee_weights import fit_target_weights, validation_cases
from models.corrector import Corrector, reads_moments
from models.device import choose_device
from models.parallel.single_process import SingleProcess
from models.provenance.envelope import Envelope
from models.provenance.training_dates import SEEN, joined_fits, seen_dates, state_fits, valid_days
from models.statistical.cases import add_unfitted

VALIDATION = "validation"
"""Value of the option `weights`: fit them on the validation years."""


@verb("combine")
def main(cfg: DictConfig) -> None:
    """Check the options, combine the correctors, write the file."""
    paths, given = plain(cfg)["correctors"], plain(cfg)["weights"]
    if not isinstance(cfg.output, str):
        raise InputError(f"output must be the path of a file, got {cfg.output!r}; write a number as ./{cfg.output}")
    if not isinstance(paths, list) or len(paths) < 2 or not all(isinstance(path, str) for path in paths):
        raise InputError(f"correctors must be a list of two files or more, [A, B, ...], got {paths!r}")
    if any(Path(path).resolve() == Path(cfg.output).resolve() for path in paths):
        raise InputError(f"output={cfg.output} is one of the correctors; choose another output file")
    data = cfg.get("data")
    if given == VALIDATION and data is None:
        raise InputError("weights=validation reads the validation years; add data=NAME, as for the training")
    if given != VALIDATION and data is not None:
        raise InputError("data is read with weights=validation only; add it, or leave out data")
    weights = None if given in (None, VALIDATION) else check_shares(given, len(paths))
    committee = combine([Path(path) for path in paths], weights)
    if given == VALIDATION:
        weigh_on_validation(committee, build(data.archive), data.store)
    committee.save(cfg.output)
    print(f"wrote {cfg.output}, a committee of {len(paths)}")


def check_shares(given: Any, count: int) -> list[float]:
    """Return the weights of the option `weights`, one for each corrector, divided by their sum."""
    if not (
        isinstance(given, list)
        and len(given) == count
        and all(type(value) in (int, float) and 0 <= value < math.inf for value in given)
        and sum(given) > 0
    ):
        raise InputError(
            f"weights must be null, {VALIDATION}, or a list of {count} numbers, one for each corrector, none negative, "
            f"not all zero; got {given!r}"
        )
    return [value / sum(given) for value in given]


def weigh_on_validation(committee: Corrector, archive: Archive, store: str | None) -> None:
    """Give a committee the weights of `fit_target_weights` for each target, from its validation dates; print them."""
    assert isinstance(committee.model, Committee)
    targets = committee.task.targets
    forecasts = validation_forecasts(committee, archive, store)
    print("\n".join(forecasts.ledger.lines("validation")))
    device = choose_device("auto", SingleProcess())
    committee.to(device)
    every = validation_cases([*committee.model.correctors], forecasts, device)
    committee.cpu()
    fits = [fit_target_weights(cases) for cases in watched(every, "fit of the weights: target")]
    weights = [list(row) for row in zip(*(fit.used for fit in fits), strict=True)]
    committee.model.set_weights(weights, len(targets))
    committee.spec["weights"] = weights
    state_fits(committee.provenance, {"model.weights": valid_days(*forecasts.times())})
    cells = len(forecasts) * math.prod(forecasts.grid.shape)
    for target, fit, cases in zip(targets, fits, every, strict=True):
        shares = f"weights {', '.join(f'{value:.2f}' for value in fit.used)}" if fit.better else "equal weights"
        print(
            f"{target}: {shares}; validation CRPS {fit.equal_crps:.5g} {target.units} with equal weights, "
            f"{fit.cross_crps:.5g} {target.units} with weights fitted on the other half of the dates; "
            f"{len(cases.truth):,} of {cells:,} cells of {len(forecasts):,} forecasts"
        )


def validation_forecasts(committee: Corrector, archive: Archive, store: str | None) -> ForecastDataset:
    """Return the forecasts of the validation dates of a committee.

    Raises `InputError` for a committee without such dates, and for data with another grid, other units, levels or
    intervals, or another number of members.
    """
    task, dates = committee.task, seen_dates(committee.provenance, "val")
    if dates is None or not dates.spans:
        raise InputError("weights=validation: the correctors were trained without validation dates; leave out weights")
    source, members = choose_source(archive, store, dates), committee.provenance.get("members")
    moments = all(reads_moments(spec) for spec in committee.spec["specs"])
    forecasts = ForecastDataset(source, task, dates, members=None if source.moments else members, moments=moments)
    found = []
    if not committee.grid.matches(forecasts.grid):
        found.append(f"on {committee.grid}, not {forecasts.grid}")
    if members not in (None, forecasts.members):
        found.append(f"with {members} members, not {forecasts.members}")
    if committee.meanings:
        found += differences(committee.meanings, task.lead_times, forecasts.meanings, task.lead_times)
    if found:
        raise InputError(
            f"weights=validation: the correctors were trained {'; '.join(found)}; give the data of their training"
        )
    if committee.provenance.get("data") not in (None, source.fingerprint):
        warn("warning: these are not the files of the training, or they have changed; the weights are fitted on them")
    return forecasts


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
    spec: dict[str, Any] = {"_target_": "models.committee.Committee", "specs": specs}
    if weights is not None:
        spec["weights"] = [[weight] * len(first.task.targets) for weight in weights]
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
    single = ("fits", "run", "unfitted", "validation_crps", "validation_crps_raw", *dates_of_splits)
    for key in dict.fromkeys(key for provenance in given for key in provenance if key not in single):
        values = [provenance.get(key) for provenance in given]
        found[key] = values[0] if all(value == values[0] for value in values) else values
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


if __name__ == "__main__":
    main()
