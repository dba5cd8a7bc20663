"""Numbers for the page's script: every score of every model in every slice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from evaluation.report.figure_style import model_colours
from evaluation.report.series import (
    DERIVED,
    Series,
    default_series,
    entry_of,
    kind_title,
    list_series,
    list_slices,
    sample_size,
    slice_title,
)

PAGE_DIGITS = 9
"""Significant digits of numbers in the page, far more than it shows."""


def explorer_json(scores: Mapping[str, Any]) -> str:
    """Return the numbers as JSON that may stand inside a `<script>` element."""
    return json.dumps(explorer_data(scores), separators=(",", ":")).replace("<", "\\u003c")


def explorer_data(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return models, slices with their sample sizes, and every series: values[kind][slice][model].

    A number is null, [value], or [value, low, high] with its 95 % interval, in the units that the page shows.
    """
    models, slices = list(scores["models"]), list_slices(scores)
    colours = model_colours(models)
    return {
        "models": models,
        "best": scores["best"]["model"],
        "unchecked": [name for name in models if name == "climatology" and len(models) > 2],
        "colours": {name: colours[name] for name in models},
        "default": default_series(scores).key,
        "slices": {
            kind: {
                "title": kind_title(kind),
                "labels": labels,
                "titles": [slice_title(kind, label) for label in labels],
                "sizes": [sample_size(scores, kind, label) for label in labels],
            }
            for kind, labels in slices.items()
        },
        "series": [
            {
                "key": one.key, "title": one.title, "menu": _menu(one), "units": one.units, "decimals": one.decimals,
                "signed": one.signed, "best": one.best,
                "text": definition_of(scores, one).replace("`", ""),
                "values": {
                    kind: [[_number(one, scores, name, kind, label) for name in models] for label in labels]
                    for kind, labels in slices.items()
                },
            }
            for one in list_series(scores)
        ],
    }  # fmt: skip


def definition_of(scores: Mapping[str, Any], series: Series) -> str:
    """Return one or two sentences on a series for the reader of its chart."""
    if series.key.startswith("captured"):
        kind = "fair" if series.key.endswith("_fair") else "plain"
        return f"(raw − model) / (raw − oracle), by the {kind} CRPS: 0 % is the raw ensemble, 100 % the oracle."
    if series.key in DERIVED:
        kind = "fair CRPS" if series.key.endswith("_fair") else "plain CRPS"
        return f"The reduction of the {kind} relative to {DERIVED[series.key][1]}. Above 0: better than the reference."
    definition = scores["definitions"][series.place[1]]
    if series.place[0] == "skill":
        return f"The reduction of this score relative to raw. {definition['text']}"
    best = {"low": " Lower is better.", "high": " Higher is better.", "zero": " 0 is best.", "one": " 1 is best."}
    return definition["text"] + best.get(definition["best"], "")


def _menu(series: Series) -> str:
    if series.group:
        return series.group
    if series.key in DERIVED:
        return "Comparisons"
    return "Scores" if series.place[0] == "scores" else "Reductions relative to raw"


def _number(series: Series, scores: Mapping[str, Any], name: str, kind: str, label: str) -> list[float] | None:
    value, interval = series.of(entry_of(scores, name, kind, label))
    if value is None or series.leaves_out(name):
        return None
    return [float(f"{number:.{PAGE_DIGITS}g}") for number in (value, *(interval or ()))]
