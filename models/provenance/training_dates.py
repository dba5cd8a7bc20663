"""The dates that a corrector has seen, in its provenance: scores on them would be too good.

`train_dates` and `val_dates` are the dates of the splits. `fits` states the valid days on which each part was
fitted: the normaliser, the modules of the model, the weights, the choice of the checkpoint, the climate of a loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from data_pipeline.dates import Dates
from data_pipeline.split import Split

if TYPE_CHECKING:
    from torch import Tensor

SEEN = {"train": "trained", "val": "validated"}
"""The splits whose dates a corrector has seen, each with its participle."""


def split_provenance(split: Split, lead_times: tuple[int, ...]) -> dict[str, list[list[str]]]:
    """Return the dates of training and validation for the provenance; no date if there is no validation.

    Dates that were left out because they are close to another split count as seen.
    """
    names = [name for name in SEEN if name == "train" or split.validates]
    found = {name: Dates(split.dates(name, lead_times).spans).to_json() for name in names}
    return {f"{name}_dates": found.get(name, []) for name in SEEN}


def seen_dates(provenance: Mapping[str, Any], name: str) -> Dates | None:
    """Return the dates of the split `name`, train or val, in a provenance; None if it does not say."""
    spans = provenance.get(f"{name}_dates")
    return None if spans is None else Dates.from_json(spans)


def valid_days(init_time: Tensor, lead_time: Tensor) -> Dates:
    """Return the valid days of forecasts with these starts (seconds since 1970) and lead times (hours)."""
    return Dates.of_times((init_time + 3600 * lead_time).cpu().numpy().astype("datetime64[s]"))


def state_fits(provenance: dict[str, Any], fits: Mapping[str, Dates]) -> None:
    """Write to `provenance` the days on which each part was fitted; other parts keep their statements.

    Parts with the same days share one list, because every list may hold thousands of days.
    """
    groups: dict[Dates, list[str]] = {}
    for part, dates in (stated_fits(provenance) | dict(fits)).items():
        groups.setdefault(dates.days, []).append(part)
    provenance["fits"] = [{"parts": parts, "dates": dates.to_json()} for dates, parts in groups.items()]


def state_training(provenance: dict[str, Any], train: Dates, val: Dates | None, climate: Dates | None = None) -> None:
    """Write the days of training by gradient descent: of the weights, of the best checkpoint, of the loss's climate.

    Weights that were loaded from an earlier run keep their days.
    """
    before = stated_fits(provenance).get("weights", Dates(()))
    fits = {"weights": Dates((*before.spans, *train.days.spans)), "checkpoint": val, "climate": climate}
    state_fits(provenance, {part: dates for part, dates in fits.items() if dates is not None})


def stated_fits(provenance: Mapping[str, Any]) -> dict[str, Dates]:
    """Return the days on which each part was fitted."""
    groups = provenance.get("fits", ())
    return {part: dates for group in groups for dates in [Dates.from_json(group["dates"])] for part in group["parts"]}


def all_seen_dates(provenance: Mapping[str, Any]) -> Dates:
    """Return all dates that any part of a corrector has seen; none if the provenance states none."""
    found = [*stated_fits(provenance).values(), *(seen_dates(provenance, name) for name in SEEN)]
    return Dates(tuple(span for dates in found if dates for span in dates.days.spans))


def trained_dates(provenance: Mapping[str, Any]) -> Dates:
    """Return the dates of `all_seen_dates` without those that only served to choose the best checkpoint."""
    found = [dates for part, dates in stated_fits(provenance).items() if part.rpartition(".")[2] != "checkpoint"]
    return Dates(
        tuple(span for dates in (*found, seen_dates(provenance, "train")) if dates for span in dates.days.spans)
    )


def joined_fits(provenances: Mapping[str, Mapping[str, Any]]) -> dict[str, Dates]:
    """Return the fits of several correctors, by the name of a corrector and of its part."""
    return {
        f"{name}.{part}": dates
        for name, provenance in provenances.items()
        for part, dates in stated_fits(provenance).items()
    }
