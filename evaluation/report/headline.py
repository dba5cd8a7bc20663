"""The headline of the report: the main result in one or two sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluation.report.tables import display_of, format_amount, format_bound, format_percent
from evaluation.scoring.scoreboard import headline_keys
from evaluation.shown_corrector import OPTION, VALIDATION


def headline(scores: Mapping[str, Any]) -> str:
    """Return the main result; gains are by the fair CRPS where it is valid."""
    name = scores["best"]["model"]
    model = scores["models"][name]
    raw, captured, emos = headline_keys(model)
    if model[raw] is None:
        crps = f"{format_amount(model['crps'], scores)} {display_of(scores).units}"
        return f"**{name}** has a CRPS of {crps}."
    verb = "lowers" if model[raw] >= 0 else "raises"
    kind = "fair CRPS" if model["crps_fair_valid"] else "plain CRPS"
    text = f"**{name}** {verb} the {kind} of the raw ensemble by {_change(model, raw)}"
    if model[emos] is not None and name != "emos":
        verb = "" if (model[emos] >= 0) == (model[raw] >= 0) else "lowers " if model[emos] >= 0 else "raises "
        text += f" and {verb}that of EMOS by {_change(model, emos)}"
    text += "."
    if model[captured] is not None and name != "climatology":
        text += (
            f" That is **{format_percent(model[captured])}** of the gain of the oracle, which knows the state "
            "around which the members were drawn and the equations of nature."
        )
    return text + _choice(scores)


def _choice(scores: Mapping[str, Any]) -> str:
    """Return how the model of the headline was chosen, if there was a choice."""
    others = [name for name in scores["models"] if name not in ("raw", "climatology")]
    by = scores["best"]["by"]
    if by == OPTION or len(others) < 2:
        return ""
    if by == VALIDATION:
        return f" Of {len(others)} correctors it had the lowest CRPS on the validation years."
    return (
        f" Of {len(others)} correctors it has the lowest CRPS on these years. Scores on these years favour a model "
        "that they select: name the one that validation years chose as `shown_corrector=NAME`."
    )


def _change(model: Mapping[str, Any], key: str) -> str:
    """Return the absolute value of a change with its interval; the text around it states the direction."""
    sign = 1 if model[key] >= 0 else -1
    text = f"**{format_percent(sign * model[key])}**"
    if interval := model["ci95"][key]:
        low, high = sorted(sign * value for value in interval)
        text += f" [{format_bound(low)}, {format_percent(high)}]"
    return text
