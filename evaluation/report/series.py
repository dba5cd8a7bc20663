"""Series: a score that the page shows for every model and slice, with the units and decimals in which it is shown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evaluation.report.tables import amount_decimals, display_of, with_ends, with_minus
from evaluation.scoring.scoreboard import MAIN_SCORES

KINDS = ("lead", "region", "season", "hour")
"""Kinds of slices in the order of the page; other kinds follow."""
DERIVED = {
    "skill_vs_raw_fair": ("Fair CRPS below raw", "raw"),
    "skill_vs_emos_fair": ("Fair CRPS below EMOS", "emos"),
    "skill_vs_climatology_fair": ("Fair CRPS below climatology", "climatology"),
    "captured_fair": ("Captured share of the oracle's gain, fair CRPS", ""),
    "skill_vs_raw": ("Plain CRPS below raw", "raw"),
    "skill_vs_emos": ("Plain CRPS below EMOS", "emos"),
    "skill_vs_climatology": ("Plain CRPS below climatology", "climatology"),
    "captured": ("Captured share of the oracle's gain, plain CRPS", ""),
}
"""Comparisons by the CRPS: title and reference."""


@dataclass(frozen=True)
class Series:
    """A number of every entry of `scores.json`, times `factor`, in `units`, with `decimals`.

    `place` is the path to the number in an entry. `without` are the models that have no such number, such as the
    reference itself.
    """

    key: str
    title: str
    place: tuple[str, ...]
    units: str
    factor: float = 1.0
    decimals: int = 3
    best: str | None = None
    without: tuple[str, ...] = ()

    def of(self, entry: Mapping[str, Any]) -> tuple[float | None, tuple[float, float] | None]:
        """Return the number of an entry and its interval in `units`; None where there is none."""
        place = _in_entry(self.place)
        value = _follow(entry, place)
        interval = _follow(entry, ("ci95", *place))
        return (
            None if value is None else self.factor * value,
            None if interval is None else (self.factor * interval[0], self.factor * interval[1]),
        )

    @property
    def signed(self) -> bool:
        """Whether a number above 0 has a plus sign: it is a difference."""
        return self.place[0].startswith("skill") or self.best == "zero"

    def text(self, value: float, sign: bool = False) -> str:
        """Return a number in `units` as text, without a negative zero; per cent have no decimals from 100 on.

        >>> bias = Series("bias", "bias", ("scores", "bias"), "K", decimals=2)
        >>> bias.text(-0.128), bias.text(-0.001), bias.text(0.25, sign=True)
        ('−0.13', '0.00', '+0.25')
        """
        decimals = 0 if self.units == "%" and abs(round(value, self.decimals)) >= 100 else self.decimals
        rounded = f"{value:.{decimals}f}"
        if float(rounded) == 0:
            return rounded.lstrip("-")
        return with_minus(("+" if sign and value > 0 else "") + rounded)

    def cell(self, entry: Mapping[str, Any], mark: str = "") -> str:
        """Return the number of an entry with its interval as text, `–` where there is none."""
        value, interval = self.of(entry)
        if value is None:
            return "–"
        text = self.text(value, self.signed) + (" %" if self.units == "%" else "") + mark
        return with_ends(text, map(self.text, interval or ()))


def list_series(scores: Mapping[str, Any]) -> list[Series]:
    """Return every number that an entry can have: comparisons first, then all scores."""
    return [*_comparisons(scores), *_own(scores)]


def list_slices(scores: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the labels of each kind of slice that is not alone of its kind."""
    found = {kind: list(labels) for kind, labels in scores["slices"].items()}
    order = {kind: found[kind] for kind in [*KINDS, *found] if kind in found}
    return {kind: labels for kind, labels in order.items() if len(labels) > 1}


def slice_title(kind: str, label: str) -> str:
    """Return the name of a slice for readers.

    >>> slice_title("lead", "48"), slice_title("hour", "06"), slice_title("region", "tropics")
    ('+48 h', '06 UTC', 'tropics')
    """
    if kind == "region":
        words = {"europe": "Europe", "new_stations": "new stations", "training_stations": "stations of the training"}
        return words.get(label, label)
    return {"lead": f"+{label} h", "hour": f"{label} UTC"}.get(kind, label)


def _comparisons(scores: Mapping[str, Any]) -> Iterator[Series]:
    models = scores["models"]
    for key, (title, reference) in DERIVED.items():
        if any(model.get(key) is not None for model in models.values()):
            without = (reference,) if reference else ("raw", "climatology")
            yield Series(key, title, (key,), "%", 100, 1, best="high", without=without)


def _own(scores: Mapping[str, Any]) -> Iterator[Series]:
    definitions = scores["definitions"]
    for name in sorted(definitions, key=lambda name: (*MAIN_SCORES, name).index(name)):
        definition = definitions[name]
        display = display_of(scores)
        target = definition["units"] == "target"
        units, factor = (display.units, display.factor) if target else ("", 1.0)
        for label in definition["labels"] or [""]:
            place = ("scores", name, *([label] if label else []))
            if target:
                decimals = amount_decimals(scores)
            elif definition["best"] == "one":
                decimals = 2
            else:
                decimals = _decimals(scores, place)
            yield Series(
                ":".join(place), f"{definition['title']} {label}".strip(), place, units, factor, decimals,
                definition["best"],
            )  # fmt: skip


def _decimals(scores: Mapping[str, Any], place: tuple[str, ...]) -> int:
    """Return the decimals that show three digits of the largest value of any model."""
    values = [abs(value) for model in scores["models"].values() if (value := _follow(model, _in_entry(place)))]
    return min(6, max(0, 2 - math.floor(math.log10(max(values))))) if values else 3


def _in_entry(place: tuple[str, ...]) -> tuple[str, ...]:
    """Return where the number stands in an entry, which holds scores under their own names."""
    return place[1:] if place[0] == "scores" else place


def _follow(entry: Any, place: tuple[str, ...]) -> Any:
    for name in place:
        entry = None if entry is None else entry.get(name)
    return entry
