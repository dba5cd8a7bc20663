"""The choice of the corrector that the headline and the maps of the report show."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from data_pipeline.common.errors import InputError
from evaluation.report.shown_data import OPTION, SCORED, VALIDATION
from evaluation.scoring.scoreboard import judging_score
from models.corrector import Corrector
from models.protocol import claims
from models.provenance.training_dates import SEEN, seen_dates

TRAINING = ("data", "members")
"""Provenance that two correctors must share, beside the dates, for their validation scores to be comparable."""


def check_shown(best: object, names: Collection[str]) -> None:
    """Refuse an option `shown_corrector` that is not the name of a corrector."""
    if best is not None and best not in names:
        known = ", ".join(names) or "there are none"
        raise InputError(
            f"shown_corrector must be the name of a corrector of this command ({known}), or null to choose by "
            f"validation scores; got {best!r}"
        )


def choose_shown(
    best: str | None,
    correctors: Mapping[str, Corrector],
    scores: Mapping[str, Any],
    runs: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, str]:
    """Return the `model` to show and what it was chosen `by`: option, validation years or scored years.

    `runs` are the names in `correctors` of the runs of each model with several training runs.
    """
    if best is not None:
        return {"model": best, "by": OPTION}
    if validated := lowest_validation(correctors, runs or {}):
        return {"model": validated, "by": VALIDATION}
    return {"model": lowest_crps(scores), "by": SCORED}


def lowest_validation(correctors: Mapping[str, Corrector], runs: Mapping[str, Sequence[str]]) -> str | None:
    """Return the corrector with the lowest validation CRPS; None if the scores are missing or not comparable.

    A model with several training runs has their mean validation CRPS.

    The validation CRPS is in normalised units, which depend on the training years, the data and `model.power`. A
    `physical` model has no normalisation, and a committee has no validation score.
    """
    found = {name: corrector.provenance.get("validation_crps") for name, corrector in correctors.items()}
    alike = {
        repr(
            [corrector.normalizer.powers]
            + [corrector.provenance.get(key) for key in TRAINING]
            + [seen_dates(corrector.provenance, name) for name in SEEN]
        )
        for corrector in correctors.values()
    }
    own = all(
        "runs" not in corrector.provenance and not claims(corrector.model).physical for corrector in correctors.values()
    )
    if len(alike) != 1 or not own:
        return None
    values = {name: float(value) for name, value in found.items() if value is not None}
    if len(values) < len(found):
        return None
    for name, members in runs.items():
        values[name] = sum(values.pop(member) for member in members) / len(members)
    return min(values, key=lambda name: values[name])


def lowest_crps(scores: Mapping[str, Any]) -> str:
    """Return the corrector with the lowest CRPS on the scored years, the fair one where it is valid.

    Without a corrector, it returns another reference than the raw ensemble. The choice uses the truth of the scored
    years, so it is for display only: it does not show which model is best.
    """
    models = scores["models"]
    others = [name for name in ("climatology", "persistence", "lapse_rate") if name in models]
    correctors = [name for name in models if name not in ("raw", *others)]
    return min(
        correctors or others[:1], key=lambda name: models[name][judging_score([models[name]["crps_fair_valid"]])]
    )
