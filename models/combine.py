"""The verb `combine`: makes one corrector of several, which forecasts the average of their forecasts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from conf import build, plain, verb
from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.common.fetching import local_file
from data_pipeline.common.messages import warn
from data_pipeline.dataset import ForecastDataset
from data_pipeline.store import choose_source
from data_pipeline.variables.meaning import differences
from models.averages.combination import combine, weigh_on_validation
from models.corrector import Corrector, reads_moments
from models.device import choose_device
from models.parallel.single_process import SingleProcess
from models.provenance.training_dates import seen_dates

VALIDATION = "validation"
"""Value of the option `weights`: fit them on the validation years."""


def given_correctors(cfg: DictConfig) -> tuple[list[str], Any]:
    """Check the options; return the files or URLs of the correctors, and their weights: shares, validation or null."""
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
    return paths, given if given in (None, VALIDATION) else check_shares(given, len(paths))


@verb("combine", given_correctors)
def main(cfg: DictConfig) -> None:
    """Check the options, combine the correctors, write the file."""
    paths, weights = given_correctors(cfg)
    committee = combine([local_file(path) for path in paths], None if weights == VALIDATION else weights)
    if weights == VALIDATION:
        forecasts = validation_forecasts(committee, build(cfg.data.archive), cfg.data.store)
        print("\n".join(forecasts.ledger.lines("validation")))
        weigh_on_validation(committee, forecasts, choose_device("auto", SingleProcess()))
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


def validation_forecasts(committee: Corrector, archive: Archive, store: str | None) -> ForecastDataset:
    """Return the forecasts of the validation dates of a committee.

    Raises `InputError` for a committee without such dates, and for data with another grid, other units, levels or
    intervals, or another number of members.
    """
    task, dates = committee.task, seen_dates(committee.provenance, "val")
    if dates is None or not dates.spans:
        raise InputError("weights=validation: the correctors were trained without validation dates; leave out weights")
    source, members = choose_source(archive, store, dates), committee.provenance.get("members")
    moments = all(reads_moments(spec, task) for spec in committee.spec["specs"])
    forecasts = ForecastDataset(source, task, dates, members=None if source.moments else members, moments=moments)
    forecasts = forecasts.with_all_groups()
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


if __name__ == "__main__":
    main()
