"""The first screen in words: the result of each target, what was scored, and what the scores cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from data_pipeline.ledger import omission_texts
from data_pipeline.task import Variable
from evaluation.report.series import list_slices, slice_title
from evaluation.report.shown_data import OPTION, VALIDATION
from evaluation.report.tables import (
    fair_crps_footnote,
    format_bound,
    format_percent,
    format_years,
    omission_parts,
    variable_title,
)
from evaluation.report.verdict import years_note
from evaluation.scoring.scoreboard import headline_keys
from evaluation.tables.score_json import entry_of

ARTICLES = {"north": "the north", "tropics": "the tropics", "south": "the south", "sea": "the sea"}
"""Regions with an article."""
SLIGHT = 0.03
"""A coverage that differs by less from the nominal one is called slightly too low or high."""


def headline(scores: Mapping[str, Any]) -> str:
    """Return whether the shown model is better than raw, by how much, where, when, and whether to trust its spread."""
    name = scores["best"]["model"]
    model = scores["models"][name]
    raw, captured, emos = headline_keys(model)
    title = variable_title(Variable.parse(scores["target"]))
    title = title[0].lower() + title[1:] if title[1:2].islower() else title
    kind = "fair CRPS" if model["crps_fair_valid"] else "plain CRPS"
    text = f"The {title} of **{name}**"
    if model[raw] is not None:
        if lead := lead_sentence(model["lead_gain"]):
            text += f" {lead}. Its {kind} is"
        else:
            text += f" has a {kind}"
        text += f" {_change(model, raw)} the raw ensemble's"
        if model[emos] is not None and name != "emos":
            text += f" and {_change(model, emos)} that of EMOS"
    else:
        text += " cannot be compared with the raw ensemble"
    text += "." + parts_sentence(scores) + trust_sentence(scores)
    if model[captured] is not None and name != "climatology":
        text += f" It captures **{format_percent(model[captured])}** of the gain of an oracle with the true equations."
    return text


def lead_sentence(gains: Mapping[str, Any] | None) -> str:
    """Return the gain in lead time at the longest lead time that has one; "" if none has.

    >>> lead_sentence({"72": {"hours": 26.4, "ci95": [24.0, 28.8], "at_least": None}})
    'is as good at 3 days as the raw ensemble at **1.9 days**, 26 h [24, 29 h] earlier'
    """
    known = [(int(lead), one) for lead, one in (gains or {}).items()]
    for lead, one in reversed(known):
        if (hours := one["hours"]) is not None:
            sign = 1 if hours >= 0 else -1
            low, high = sorted(sign * end for end in one["ci95"] or (hours, hours))
            interval = f" [{low:.0f}, {high:.0f} h]" if one["ci95"] else ""
            found = f"**{days(lead - hours)}**, {sign * hours:.0f} h{interval} {'earlier' if sign > 0 else 'later'}"
            return f"is as good at {days(lead)} as the raw ensemble at {found}"
    for lead, one in reversed(known):
        if one["at_least"]:
            return f"is better at {days(lead)} than the raw ensemble at its shortest lead time, {days(known[0][0])}"
    return ""


def days(hours: float) -> str:
    """Return a lead time as text: in hours below two days when it is a whole number of them, else in days.

    >>> days(36), days(24.2), days(45.6), days(72)
    ('36 h', '1 day', '1.9 days', '3 days')
    """
    if hours < 48 and float(hours).is_integer():
        return f"{hours:.0f} h"
    count = f"{hours / 24:.1f}".removesuffix(".0")
    return f"{count} day{'s' * (count != '1')}"


def parts_sentence(scores: Mapping[str, Any]) -> str:
    """Return the region and season with the largest and the smallest gain, and those without one.

    Regions or seasons whose largest and smallest gain have overlapping intervals are not named: their order may be
    chance.
    """
    name = scores["best"]["model"]
    key = headline_keys(scores["models"][name])[0]
    most: list[str] = []
    least: list[str] = []
    open_ones: list[str] = []
    worse: list[str] = []
    for kind in ("region", "season"):
        gains = {}
        for label in list_slices(scores).get(kind, []):
            entry = entry_of(scores, name, kind, label)
            if label in ("global", "unweighted") or entry[key] is None:
                continue
            low, high = entry["ci95"][key] or (-1.0, 1.0)
            place = f"over {ARTICLES.get(label, slice_title(kind, label))}" if kind == "region" else f"in {label}"
            if low > 0:
                gains[f"{place} ({format_percent(entry[key])})"] = entry[key], low, high
            else:
                (worse if high < 0 else open_ones).append(place)
        if not gains:
            continue
        first, last = (choose(gains, key=lambda place: gains[place]) for choose in (max, min))
        if first == last or gains[first][1] > gains[last][2]:
            most.append(first)
            least += [last] * (first != last)
    text = f" The gain is largest {' and '.join(most)}" if most else ""
    text += f", smallest {' and '.join(least)}" if least else ""
    if open_ones:
        text += f"{'; no' if text else ' No'} gain is shown {', '.join(open_ones)}"
    if worse:
        text += f"{'; it' if text else ' It'} is worse than raw {', '.join(worse)}"
    return text + "." * bool(text)


def trust_sentence(scores: Mapping[str, Any]) -> str:
    """Return whether the central intervals of the shown model hold as many analyses as they should; "" if unknown."""
    models, name = scores["models"], scores["best"]["model"]
    found, raw = (models[one]["central_interval"] for one in (name, "raw"))
    if not found or not found["ci95"]:
        return ""
    low, high = found["ci95"]
    honest = "too narrow" if high < found["nominal"] else "too wide" if low > found["nominal"] else "honest"
    if honest != "honest" and abs(found["held"] - found["nominal"]) < SLIGHT:
        honest = f"slightly {honest}"
    share, held = (f"{100 * found[key]:.0f} %" for key in ("nominal", "held"))
    return (
        f" Its intervals are **{honest}**: {share} intervals hold {held} [{100 * low:.0f}, {100 * high:.0f} %] of the "
        f"analyses (raw: {100 * raw['held']:.0f} %)."
    )


def scored_on(scores: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was scored: dates, sample, models, what was left out, and how far fits are from the scored dates."""
    starts, forecasts = scores["n_dates"], scores["n_forecasts"]
    yield (
        f"{scores['split']} {format_years(scores)}: {starts} starts, {forecasts} forecasts, {scores['members']} raw "
        f"members; {scores['grid']}"
    )
    yield f"models: {', '.join(scores['models'])}; shown: {scores['best']['model']}, {_choice(scores)}"
    ledger, audit = scores["ledger"], scores["leak_audit"]
    yield f"{ledger['used']:,} of {ledger['forecasts']:,} forecasts that are valid on these dates are used"
    yield from omission_texts(ledger)
    yield from omission_parts(scores) or ["no cell of these forecasts is left out"]
    days = [
        f"{name} {one['nearest_days']:,}" for name, one in audit["models"].items() if one["nearest_days"] is not None
    ]
    if days:
        yield f"days from the dates of fits to the nearest scored date: {', '.join(days)}"
    yield from audit["notes"]


def cannot_say(scores: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the scores do not show."""
    name = scores["best"]["model"]
    power = scores["power"]["models"].get(name, {})
    if known := [f"{share:.1f} % ({other})" for other, share in power.items() if share is not None]:
        least = " or ".join(known)
        yield f"a true gain of {name} below {least} of raw's CRPS is missed in one of five such samples"
    if scores["models"][name]["lead_gain"] is None:
        yield "a gain in lead time needs two lead times; one was scored"
    if note := years_note(scores):
        yield note
    if scores["best"]["by"] not in (OPTION, VALIDATION):
        yield (
            "the shown model was chosen on the scored years, which favours it: name the model that validation years "
            "chose as `shown_corrector=NAME`"
        )
    if scores["oracle"]:
        yield "the truth is simulated: gains on real forecasts are smaller"
    if not any(one["units"] == "" and one["labels"] for one in scores["definitions"].values()):
        yield "no events were scored: `scores=all` adds them"
    if footnote := fair_crps_footnote(scores):
        yield footnote
    if not any(score.startswith(("energy_score", "variogram_score")) for score in scores["definitions"]):
        yield "scores are of single cells and lead times: not whether places, times and variables fit together"


def _choice(scores: Mapping[str, Any]) -> str:
    """Return how the shown model was chosen."""
    by = scores["best"]["by"]
    return "as asked" if by == OPTION else f"which had the lowest CRPS on the {by}"


def _change(model: Mapping[str, Any], key: str) -> str:
    """Return a change with its interval: `**12.3 %** [11.0, 13.6 %] below`."""
    sign = 1 if model[key] >= 0 else -1
    text = f"**{format_percent(sign * model[key])}**"
    if interval := model["ci95"][key]:
        low, high = sorted(sign * value for value in interval)
        text += f" [{format_bound(low)}, {format_percent(high)}]"
    return text + (" below" if sign > 0 else " above")
