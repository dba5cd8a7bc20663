"""Provenance of a report: fingerprints, versions, time and energy of the run, as a list for the page."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")
"""Folder of the energy counters of processors under Linux."""
PACKAGES = ("torch", "numpy", "xarray", "matplotlib")


class EnergyMeter:
    """Energy that the processor packages have used since the meter was made, read from their counters (RAPL).

    Machines that have no such counters, or do not let this user read them, have no energy.
    """

    def __init__(self, folder: Path = POWERCAP) -> None:
        packages = sorted(path for path in folder.glob("intel-rapl:*") if path.name.count(":") == 1)
        self._counters = [path / "energy_uj" for path in packages]
        self._began = [_read(path) for path in self._counters]

    def joules(self) -> float | None:
        """Return the energy in J; None where the machine does not tell it. A counter may have started again once."""
        total = 0
        for path, began in zip(self._counters, self._began, strict=True):
            now, span = _read(path), _read(path.with_name("max_energy_range_uj"))
            if began is None or now is None or (now < began and span is None):
                return None
            total += now - began if now >= began else now - began + (span or 0)
        return total / 1e6 if self._counters else None


@dataclass(frozen=True)
class RunClock:
    """Start of a run; `facts` are its end, duration and energy."""

    meter: EnergyMeter = field(default_factory=EnergyMeter)
    began: float = field(default_factory=time.monotonic)

    def facts(self) -> dict[str, str]:
        """Return date, duration and, where the machine tells it, energy as text."""
        seconds = time.monotonic() - self.began
        found = {
            "Written": f"{datetime.now(UTC):%-d %B %Y, %H:%M} UTC",
            "Duration": f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min",
        }
        joules = self.meter.joules()
        if joules is not None:
            amount = f"{joules:,.0f} J" if joules < 3.6e5 else f"{joules / 3.6e6:.2f} kWh"
            found["Energy"] = f"{amount}, counted by the processor packages of this machine, for all its programs"
        return found


def provenance_list(scores: Mapping[str, Any], run: Mapping[str, str]) -> str:
    """Return everything that the scores depend on, and the facts of the run, as an HTML list of terms."""
    inputs = scores["inputs"]
    facts = {
        "Scored": f"{scores['split']}, {scores['task']}, target {scores['target']}",
        "Grid": scores["grid"],
        "Averages": scores["weights"],
        "Options": inputs["options"],
        "Data": inputs["data"],
        **{f"Corrector {name}": files for name, files in inputs["correctors"].items()},
        "Deepweather": f"{inputs['deepweather']}, scores.json format {scores['format']}",
        "Software": ", ".join(
            [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)]
        ),
        **run,
    }
    hashes = {"Options", "Data", *(f"Corrector {name}" for name in inputs["correctors"])}
    return term_list((name, _code(text) if name in hashes else escape(str(text))) for name, text in facts.items())


def term_list(pairs: Iterable[tuple[str, str]]) -> str:
    """Return terms and their descriptions, which are HTML, as a list."""
    rows = "".join(f"<div><dt>{escape(term)}</dt><dd>{description}</dd></div>" for term, description in pairs)
    return f"<dl>{rows}</dl>"


def _code(text: object) -> str:
    return f"<code>{escape(str(text))}</code>"


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
