"""The leak audit: no scored date may have taken part in the fit of a model that is scored, or of a reference.

A date is the day for which a forecast is valid. A forecast of any start and lead time that is valid on a day saw the
weather of that day, so a day that was trained at one lead time must not be scored at another. Hindcasts of one start
date are forecasts of different years: the same calendar day of another year is another date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.dates import Dates
from data_pipeline.split import Split
from evaluation.forecasters.fold_correctors import FoldCorrectors
from models.corrector import Corrector
from models.provenance.training_dates import SEEN, seen_dates, stated_fits


def check_leaks(corrector: Corrector, path: Path, scored: Dates | None) -> None:
    """Raise an `InputError` if a part of a corrector was fitted on a `scored` date, or does not state its dates.

    Without `scored`, only the statements are checked: `FoldCorrectors.check` compares the dates of all folds.
    """
    for name, verb in SEEN.items():
        seen = seen_dates(corrector.provenance, name)
        if seen is None:
            raise InputError(
                f"{path} does not say on which dates it was {verb}, so a leak cannot be ruled out; train it again"
            )
        if scored and (shared := seen.first_shared(scored)):
            raise InputError(
                f"{path} was {verb} on {shared}, a date of the scored split ({scored}); "
                "score other dates or train it without these"
            )
    fits = stated_fits(corrector.provenance)
    for part in corrector.fitted_parts:
        if not any(part == stated or part.startswith(f"{stated}.") for stated in fits):
            raise InputError(
                f"{path} does not say on which dates its {part_title(corrector, part)} was fitted, so a leak cannot be "
                "ruled out; train it again"
            )
    for part, dates in fits.items():
        if scored and (shared := dates.first_shared(scored)):
            raise InputError(
                f"{path}: its {part_title(corrector, part)} {_verb(part)} {shared}, a date of the scored split "
                f"({scored}); score other dates or train it without these"
            )


def check_reference_dates(name: str, fitted: Dates, scored: Dates) -> None:
    """Raise an `InputError` if the reference `name` would be fitted on a `scored` date."""
    if shared := Dates(fitted.spans).first_shared(scored):
        raise InputError(
            f"references: {name} would leak, because {shared}, a scored date, is among its training dates {fitted}; "
            f"score another split, or leave out {name} with references=[raw]"
        )


def part_title(corrector: Corrector, part: str) -> str:
    """Return a part of a corrector in words: `normaliser`, `model.head.start (EMOS)`, `best checkpoint`.

    >>> part_title(None, "checkpoint")
    'best checkpoint'
    """
    owner, _, last = part.rpartition(".")
    words = {"normalizer": "normaliser", "checkpoint": "best checkpoint", "climate": "climate of the loss"}.get(last)
    if words:
        return words + f" of {owner}" * bool(owner)
    try:
        return f"{part} ({type(corrector.get_submodule(part)).__name__})"
    except AttributeError:
        return part


def audit(
    models: Mapping[str, FoldCorrectors], valid: np.ndarray, lead_times: Sequence[int], split: Split
) -> dict[str, Any]:
    """Return, for each model that was fitted, the distance in days between the dates of its fits and the scored dates.

    `valid` holds the valid times (datetime64) of the scored forecasts. Forecasts that are valid on neighbouring days
    share weather, so `notes` name models that were fitted within the longest lead time, or the gap of `split`, of a
    scored date. If `split` states `gap_days`, an `InputError` refuses a model with a part that was fitted at most this
    many days from a scored date.
    """
    found: dict[str, Any] = {}
    notes = []
    apart = max(-(-max(lead_times) // 24), split.gap(lead_times))
    for name, folds in models.items():
        chosen = folds.choose(valid)
        nearest: list[tuple[int, str, str, np.datetime64]] = []
        for k, corrector in enumerate(folds.correctors):
            days = np.unique(valid[chosen == k].astype("datetime64[D]"))
            for part, dates in stated_fits(corrector.provenance).items():
                if len(days) and dates.spans:
                    distance, day = nearest_day(dates, days)
                    nearest.append((distance, part, part_title(corrector, part), day))
                    if split.gap_days and distance <= split.gap_days:
                        raise InputError(
                            f"{name}: its {part_title(corrector, part)} {_verb(part)} a date {_days(distance)} from "
                            f"{day}, a scored date, and data.split.gap_days={split.gap_days} asks for more; train it "
                            "with this option"
                        )
        if not nearest:
            continue
        distance, part, title, day = min(nearest)
        found[name] = {"nearest_days": distance, "part": part}
        if distance <= apart:
            notes.append(
                f"{name}: its {title} {_verb(part)} a date {_days(distance)} from {day}, a scored date; "
                f"neighbouring days share weather, and data.split.gap_days={apart} in training keeps such dates apart"
            )
    return {"models": found, "notes": notes}


def nearest_day(fitted: Dates, days: np.ndarray) -> tuple[int, np.datetime64]:
    """Return the smallest distance in days between `fitted` dates and sorted `days`, and the day with this distance.

    >>> nearest_day(Dates.of_years([2015]), np.array(["2016-01-03", "2016-05-01"], "datetime64[D]"))
    (3, np.datetime64('2016-01-03'))
    """
    first, last = np.array(fitted.days.spans, "datetime64[D]").T
    behind = np.searchsorted(first, days, "right") - 1
    # `behind` is the last span that starts on or before a day: the day lies in this span or after it.
    day, never = np.timedelta64(1, "D"), np.iinfo(np.int64).max
    after = np.where(behind >= 0, (days - last[behind]) // day, never)
    ahead = np.minimum(behind + 1, len(first) - 1)
    before = np.where(behind + 1 < len(first), (first[ahead] - days) // day, never)
    distance = np.maximum(np.minimum(after, before), 0)
    place = int(distance.argmin())
    return int(distance[place]), days[place]


def _verb(part: str) -> str:
    return {
        "checkpoint": "was chosen on",
        "weights": "were trained on",
        "climate": "was made of",
        "pre-training": "saw",
        "distillation": "saw",
    }.get(part.rpartition(".")[2], "was fitted on")


def _days(count: int) -> str:
    return f"{count} day{'s' * (count != 1)}"
