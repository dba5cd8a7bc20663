"""Provenance of a report: fingerprints, versions, time and energy of the run."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from data_pipeline.common.cost_meter import JOULES_PER_KWH, Usage

PACKAGES = ("torch", "numpy", "xarray", "matplotlib")


def run_facts(usage: Usage) -> dict[str, str]:
    """Return end, duration and, where the machine tells it, energy of a run as text."""
    seconds, kwh = usage.seconds, usage.kwh
    found = {
        "Written": f"{datetime.now(UTC):%-d %B %Y, %H:%M} UTC",
        "Duration": f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min",
    }
    if kwh is not None:
        amount = f"{kwh * JOULES_PER_KWH:,.0f} J" if kwh < 0.1 else f"{kwh:.2f} kWh"
        found["Energy"] = f"{amount}, counted by {usage.source} on the machines of this run, for all their programs"
    return found


def provenance_terms(scores: Mapping[str, Any], run: Mapping[str, str]) -> dict[str, str]:
    """Return everything that the scores depend on, and the facts of the run, by name; hashes are between backticks."""
    inputs = scores["inputs"]
    return {
        "Scored": f"{scores['split']}, {scores['task']}, target {scores['target']}",
        "Grid": scores["grid"],
        "Averages": scores["weights"],
        "Options": f"`{inputs['options']}`",
        "Data": f"`{inputs['data']}`",
        **{f"Corrector {name}": f"`{files}`" for name, files in inputs["correctors"].items()},
        "Deepweather": f"{inputs['deepweather']}, scores.json format {scores['format']}",
        "Software": ", ".join(
            [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)]
        ),
        **run,
    }
