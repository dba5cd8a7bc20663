"""The summary of a run, `summary.json` in its folder: time, memory, energy, validation, and `time_to_crps`.

The file is also the account of the run over all its starts: a resumed run adds to it. docs/cost.md explains each field.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from data_pipeline.common.cost_meter import CostMeter, Usage, describe_energy, describe_gpu
from data_pipeline.common.files import atomic_write, remove_abandoned_files
from data_pipeline.common.messages import format_duration, format_size
from models.parallel.mesh import Mesh
from training.run.run_folder import SUMMARY

SUMMARY_FORMAT = 1
PHASES = ("start", "fit", "train", "validate", "save")
PASSED = 0.999
"""A validation has passed a reference if its CRPS is at most this many times the reference's; rounding differs by
less."""
WAITING, WAITING_SECONDS = 0.1, 60.0
"""Least share of the training time, and least seconds, of waiting for data that give a message."""
GAIN = 0.9
"""Share of the final gain over the raw ensemble in `time_to_crps.gain90`."""


class RunSummary:
    """Records the time of a run by phase and the resources that it used, and writes `summary.json`.

    The phase `start` begins with the command, before this object is made. All ranks call `collect` together; the first
    rank writes the file, then and about once a minute.
    """

    def __init__(self, run_dir: Path, meter: CostMeter, mesh: Mesh) -> None:
        self.file, self.meter, self._mesh = run_dir / SUMMARY, meter, mesh
        self._before: Mapping[str, Any] = read_summary(self.file) if mesh.first else {}
        self._phase, self._since = PHASES[0], meter.began
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._validations: list[dict[str, Any]] = list(self._before.get("validations", ()))
        self.references: dict[str, float] = {}
        """CRPS of the forecasts that the model is compared with in the validation: `raw`, `climatology` and `emos`."""
        self.by_lead_time: Mapping[str, Mapping[int, float]] = {}
        """CRPS of the saved `model` and of each reference in the validation, by lead time (hours)."""
        self.samples, self.waiting = 0, 0.0
        """Samples of all ranks that were trained on in this start, and the seconds that this rank waited for them."""
        self.advice = ""
        """Advice how to read the data faster, "" if there is none."""
        self._crps: float | None = None
        self._others: list[Usage] = []
        self._slowest = 0.0
        self._lock = threading.RLock()
        self._closed = False

    def __enter__(self) -> RunSummary:
        if self._mesh.first:
            remove_abandoned_files(self.file.parent)
            self.write()
            self.meter.report = self.write
        return self

    def __exit__(self, *exception: object) -> None:
        self.meter.report = None
        # After an error, such as a lost rank or a full disk, other ranks may not answer: no `collect` here.
        with suppress(Exception):
            self.write()

    def enter(self, phase: str) -> str:
        """Begin a phase, one of `PHASES`; return the phase before it."""
        with self._lock:
            before, now = self._phase, self.meter.clock()
            self._seconds[before] += now - self._since
            self._phase, self._since = phase, now
        return before

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count the time of the block to this phase."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def continue_from(self, step: int) -> None:
        """Forget validations after this step, from which the run resumes; −1 for a run from its first step."""
        with self._lock:
            self._validations = [each for each in self._validations if each["step"] <= step]

    def validated(self, epoch: int, step: int, loss: float | None, crps: float) -> None:
        """Keep the result of a validation; all ranks call this together."""
        self.collect()
        with self._lock:
            # A run that resumes from a checkpoint after the last step of an epoch repeats the validation of this epoch.
            self._validations = [each for each in self._validations if each["epoch"] < epoch]
            total = self.describe()
            self._validations.append(
                {
                    "epoch": epoch, "step": step, "seconds": total["seconds"], "kwh": total["energy"]["kwh"],
                    "loss": _finite(loss), "crps": _finite(crps),
                }
            )  # fmt: skip
        if self._mesh.first:
            self.write()

    def collect(self) -> None:
        """Bring the usage of all ranks to the first one; all ranks call this together."""
        if self._mesh.ranks == 1:
            return
        found = self._mesh.gather((self.meter.usage(), self.waiting))
        if found is not None:
            with self._lock:
                self._others = [usage for usage, _ in found[1:]]
                self._slowest = max(waiting for _, waiting in found)

    def waiting_message(self) -> str:
        """Return, once, how long this process has waited for data, with the advice; "" if that was short."""
        with self._lock:
            self.enter(self._phase)
            train = self._seconds["train"]
            if not self.advice or self.waiting < max(WAITING_SECONDS, WAITING * train):
                return ""
            share, advice, self.advice = min(1.0, self.waiting / train), self.advice, ""
        return (
            f"training has waited {format_duration(self.waiting)} for data, {100 * share:.0f} % of its time; {advice}"
        )

    def finish(self, crps: float | None = None) -> str:
        """Write the last summary, with the `crps` of the saved corrector; return its lines for the user."""
        self.collect()
        self.enter("save")
        self._crps = crps
        if not self._mesh.first:
            return ""
        summary = self.describe(finished=True)
        self.write(finished=True)
        return "\n".join(describe_summary(summary))

    def write(self, finished: bool = False) -> None:
        """Write the file, except after the last summary, and on other ranks than the first."""
        with self._lock:
            if self._closed or not self._mesh.first:
                return
            self._closed = finished
            write_summary(self.file, self.describe(finished))

    def describe(self, finished: bool = False) -> dict[str, Any]:
        """Return the summary until now."""
        with self._lock:
            before = self._before
            self.enter(self._phase)
            old = before.get("phases", {})
            phases = {name: old.get(name, 0.0) + self._seconds[name] for name in PHASES}
            usage = Usage.of_ranks([self.meter.usage(), *self._others])
            samples = before.get("samples", 0) + self.samples
            waiting = before.get("waiting_seconds", 0.0) + max(self.waiting, self._slowest)
            seconds, train = sum(phases.values()), phases["train"]
            best = best_validation(self._validations)
            references = dict(before.get("references", {})) | self.references
            return {
                "format": SUMMARY_FORMAT,
                "finished": finished,
                "ranks": self._mesh.ranks,
                "starts": before.get("starts", 0) + 1,
                "epochs": max((each["epoch"] for each in self._validations), default=0),
                "seconds": seconds,
                "phases": phases,
                "samples": samples,
                "samples_per_second": samples / train if samples and train else None,
                "waiting_seconds": waiting,
                "waiting_share": min(1.0, waiting / train) if samples and train else None,
                "peak_memory_bytes": max(before.get("peak_memory_bytes", 0), usage.peak_memory_bytes),
                "peak_gpu_memory_bytes": _largest(before.get("peak_gpu_memory_bytes"), usage.peak_gpu_memory_bytes),
                "gpu_utilisation": _mean(
                    (before.get("gpu_utilisation"), before.get("seconds", 0.0)), (usage.gpu_utilisation, usage.seconds)
                ),
                "energy": _add_energy(before.get("energy"), usage),
                "validation": {
                    "crps": best.get("crps") if self._crps is None else _finite(self._crps),
                    "crps_raw": references.get("raw"),
                    "loss": best.get("loss"),
                    "epoch": best.get("epoch"),
                },
                "references": references,
                "by_lead_time": self.by_lead_time or before.get("by_lead_time", {}),
                "time_to_crps": time_to_crps(self._validations, references),
                "validations": self._validations,
            }


def best_validation(validations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the first validation with the lowest loss, else the one with the lowest CRPS; {} if there is none."""
    for name in ("loss", "crps"):
        known = [each for each in validations if each[name] is not None]
        if known:
            return min(known, key=lambda each: each[name])
    return {}


def time_to_crps(
    validations: Sequence[Mapping[str, Any]], references: Mapping[str, float]
) -> dict[str, dict[str, float | None] | None]:
    """Return seconds and kWh until the CRPS of a validation was at most `PASSED` times that of each reference.

    `gain90` is for the first validation with nine tenths of the best validation's gain over the raw ensemble. An entry
    is None if no validation has passed the reference, or if there is no reference.
    """
    limits = {name: PASSED * references[name] if name in references else None for name in ("raw", "emos")}
    raw, best = references.get("raw"), best_validation(validations).get("crps")
    if raw is not None and best is not None and best <= PASSED * raw:
        limits["gain90"] = raw - GAIN * (raw - best)
    else:
        limits["gain90"] = None
    return {name: _first(validations, limit) for name, limit in limits.items()}


def _first(validations: Sequence[Mapping[str, Any]], limit: float | None) -> dict[str, float | None] | None:
    for each in validations:
        if limit is not None and each["crps"] is not None and each["crps"] <= limit:
            return {"seconds": each["seconds"], "kwh": each["kwh"]}
    return None


def describe_summary(summary: Mapping[str, Any]) -> list[str]:
    """Return a summary as lines for the user."""
    phases = summary["phases"]
    words = {"start": "start", "fit": "fits", "train": "training", "validate": "validation", "save": "saving"}
    times = ", ".join(f"{words[name]} {format_duration(phases[name])}" for name in PHASES if phases[name] >= 0.5)
    starts = f" in {summary['starts']} starts" if summary["starts"] > 1 else ""
    parts = [f"done in {format_duration(summary['seconds'])}{starts}" + (f" ({times})" if times else "")]
    if summary["samples_per_second"] is not None:
        parts.append(f"{summary['samples_per_second']:.3g} samples/s")
        parts.append(f"{100 * summary['waiting_share']:.0f} % of the training spent waiting for data")
    of_each = " of a rank" if summary["ranks"] > 1 else ""
    parts.append(f"at most {format_size(summary['peak_memory_bytes'])} of memory{of_each}")
    parts += describe_gpu(summary["peak_gpu_memory_bytes"], summary["gpu_utilisation"])
    energy = summary["energy"]
    lines = [f"{', '.join(parts)}, {describe_energy(energy['kwh'], energy['source'], energy['why'])}"]
    names = {"raw": "the raw ensemble", "emos": "EMOS", "gain90": "90 % of the final gain"}
    passed = [
        f"{names[name]} after {format_duration(when['seconds'])}"
        + ("" if when["kwh"] is None else f" and {when['kwh']:.3g} kWh")
        for name, when in summary["time_to_crps"].items()
        if when is not None
    ]
    return [*lines, f"the validation passed {', '.join(passed)}"] if passed else lines


def read_summary(file: Path) -> dict[str, Any]:
    """Return the summary in a file; {} if there is none, or one of another format."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("format") == SUMMARY_FORMAT else {}


def write_summary(file: Path, summary: Mapping[str, Any]) -> None:
    """Write a summary; only a finished one waits for the disk, which delayed Ctrl-C by up to 12 s on a busy disk."""
    with atomic_write(file, "w", durable=summary["finished"]) as stream:
        json.dump(summary, stream, indent=2)
        stream.write("\n")


def mark_finished(run_dir: Path) -> None:
    """Mark a run as finished that was killed after it saved its corrector."""
    file = run_dir / SUMMARY
    if (found := read_summary(file)) and not found["finished"]:
        write_summary(file, found | {"finished": True})


def _add_energy(before: Mapping[str, Any] | None, usage: Usage) -> dict[str, Any]:
    """Return the energy of earlier starts and of this one."""
    known = [each for each in ((before or {}).get("kwh"), usage.kwh) if each is not None]
    sources = {*filter(None, (before or {}).get("source", "").split(", ")), *filter(None, usage.source.split(", "))}
    reasons = [*filter(None, (before or {}).get("why", "").split("; ")), *usage.unmeasured]
    return {
        "kwh": sum(known) if known else None,
        "source": ", ".join(sorted(sources)),
        "why": "; ".join(dict.fromkeys(reasons)),
    }


def _largest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _mean(*parts: tuple[float | None, float]) -> float | None:
    """Return the weighted mean of the known values, None without any."""
    known = [(value, weight) for value, weight in parts if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _finite(value: float | None) -> float | None:
    """Return a number that JSON can hold: None in place of NaN and infinity."""
    return value if value is not None and math.isfinite(value) else None
