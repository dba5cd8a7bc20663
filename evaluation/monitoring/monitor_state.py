"""The state of `monitor` between two runs: scores of all verified forecasts, and the forecasts that wait."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import write_text
from evaluation.monitoring.forecast_scores import RegionScores

STATE_FORMAT = 3


class MonitoredForecast(NamedTuple):
    """A forecast, identified by its target, start in seconds since 1970 and lead time in hours."""

    target: str
    start: int
    lead_time: int

    @property
    def valid(self) -> int:
        """The valid time in seconds since 1970."""
        return self.start + 3600 * self.lead_time

    def __str__(self) -> str:
        """Return the forecast in words.

        >>> str(MonitoredForecast("2t", 0, 48))
        '2t of 1970-01-01T00:00 +48 h'
        """
        return f"{self.target} of {time_text(self.start)} +{self.lead_time} h"


def time_text(seconds: int) -> str:
    """Return a time in seconds since 1970 as text."""
    return str(np.datetime64(seconds, "s").astype("datetime64[m]"))


@dataclass(frozen=True)
class VerifiedForecast:
    """The scores of one forecast; `cores` are shares (3,) of analyses below the tracked levels, by conformal region.

    Analyses that equal members count in part. `conformal` tells whether the file was corrected with a conformal layer.
    """

    file: str
    conformal: bool
    regions: Mapping[str, RegionScores]
    cores: Mapping[str, np.ndarray]


@dataclass
class MonitorState:
    """Everything that `monitor` remembers. `about` names the corrector and the options that all scores depend on."""

    about: dict[str, Any]
    verified: dict[MonitoredForecast, VerifiedForecast] = field(default_factory=dict)
    waiting: dict[MonitoredForecast, str] = field(default_factory=dict)
    """The files of the forecasts without an analysis."""

    @classmethod
    def load(cls, path: Path, about: dict[str, Any]) -> MonitorState:
        """Return the state in a file, a new one if there is none. `about` must be the same as before."""
        if not path.exists():
            return cls(about)
        try:
            found = json.loads(path.read_text("utf-8"))
            if found["kind"] != "monitor state" or found["format"] != STATE_FORMAT:
                raise ValueError(f"format {found['format']}")
            state = cls(found["about"])
            for one in found["verified"]:
                regions = {name: RegionScores.from_json(numbers) for name, numbers in one["regions"].items()}
                cores = {name: np.array(shares, float).reshape(3) for name, shares in one["cores"].items()}
                state.verified[_key(one)] = VerifiedForecast(one["file"], bool(one["conformal"]), regions, cores)
            state.waiting = {_key(one): str(one["file"]) for one in found["waiting"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is no state of this version of monitor ({error}); choose a new run_dir, or restore the file"
            ) from None
        if changed := [name for name in about if state.about.get(name) != about[name]]:
            name = changed[0]
            raise InputError(
                f"{path} was made with another {name} ({_short(state.about.get(name))}, not {_short(about[name])}), "
                "and its scores cannot be continued; choose a new run_dir"
            )
        return state

    def save(self, path: Path) -> None:
        """Write the state; the old file stays complete until the new file is complete."""
        verified = [
            {
                **key._asdict(), "file": one.file, "conformal": one.conformal,
                "regions": {name: scores.to_json() for name, scores in one.regions.items()},
                "cores": {name: shares.tolist() for name, shares in one.cores.items()},
            }
            for key, one in sorted(self.verified.items())
        ]  # fmt: skip
        waiting = [{**key._asdict(), "file": file} for key, file in sorted(self.waiting.items())]
        found = {"format": STATE_FORMAT, "kind": "monitor state", "about": self.about}
        write_text(path, json.dumps({**found, "verified": verified, "waiting": waiting}, allow_nan=False) + "\n")


def _key(one: Mapping[str, Any]) -> MonitoredForecast:
    return MonitoredForecast(str(one["target"]), int(one["start"]), int(one["lead_time"]))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
