"""Match forecasts with analyses, and score the forecasts that have an analysis."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import AbsentVariableError, InputError
from data_pipeline.common.identity import sha256_of
from data_pipeline.common.progress import watched
from data_pipeline.dates import epoch_seconds
from data_pipeline.formats.open import analysis_fields, ensemble_fields, lead_times_of
from data_pipeline.grid import Grid
from data_pipeline.protocols import Fields
from data_pipeline.regridding.target import TargetGrid
from data_pipeline.task import Task, Variable
from data_pipeline.truth_checks import TruthChecks, checked, examine
from data_pipeline.variables.meaning import check_targets
from evaluation.monitoring.forecast_scores import member_levels, score_regions, shares_below
from evaluation.monitoring.monitor_state import MonitoredForecast, MonitorState, VerifiedForecast
from models.corrected_files.sidecar import sidecar_path
from models.members.conformal import band_weights, interval_levels, normal_scores, ordered

EVERY_CORRECTOR = "every"
"""In place of a corrector's SHA-256: forecasts of every training of the model are scored, without a conformal layer."""
FAR = 10.0
"""Mean error in spreads. A forecast with a larger one probably has other units or another variable than its
analysis."""


@dataclass
class VerificationReport:
    """What one run of `monitor` has done with each given forecast."""

    new: list[MonitoredForecast] = field(default_factory=list)
    known: list[MonitoredForecast] = field(default_factory=list)
    """Forecasts that an earlier run has scored, and that are not scored again."""
    incomplete: dict[MonitoredForecast, str] = field(default_factory=dict)
    """Forecasts that lack fields, with the missing fields."""
    far: dict[MonitoredForecast, float] = field(default_factory=dict)
    """Forecasts that are farther than `FAR` from their analysis."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MonitoredTask:
    """Targets and lead times of a task on a grid, which are read and scored, and weights (h, w) of the regions."""

    task: Task
    grid: Grid
    target_grid: TargetGrid | None
    names: Mapping[str, str] | None
    weights: Mapping[str, np.ndarray]
    interval: float
    step: float
    corrector: str
    quantile_levels: str
    truth_checks: TruthChecks = "report"

    @property
    def cores(self) -> dict[str, np.ndarray]:
        """The areas (h, w) of the cores of all conformal regions."""
        area = np.broadcast_to(self.grid.weights[:, None], self.grid.shape)
        latitudes = np.broadcast_to(self.grid.cell_latitudes, self.grid.shape)
        return {name: np.where(share == 1, area, 0.0) for name, share in band_weights(latitudes).items()}


def verify(
    monitored: MonitoredTask, state: MonitorState, files: Sequence[Path], analyses: Sequence[str]
) -> VerificationReport:
    """Score the forecasts of `files`, and waiting ones, whose analysis is in `analyses`; update the state.

    Forecasts are scored in the order of their valid times. A forecast that the state counts already is not scored
    again, even from another file. A forecast without an analysis waits, and its file is read in a later run.
    """
    report = VerificationReport()
    waiting = [Path(name) for name in dict.fromkeys(state.waiting.values())]
    if lost := [path for path in waiting if not path.exists() and path not in files]:
        report.notes.append(
            f"{lost[0]}{f' and {len(lost) - 1} more files' * (len(lost) > 1)} of waiting forecasts no longer exist; "
            "restore them, or give the forecasts again from another file"
        )
    every = [*files, *(path for path in waiting if path not in files and path.exists())]
    truths = {target: open_analyses(monitored, target, analyses) for target in monitored.task.targets}
    ready: dict[MonitoredForecast, tuple[Fields, int, int, Path]] = {}
    for path in watched(every, "opening: file"):
        given = path in files
        check_sidecar(path, monitored.corrector, report.notes)
        for target, fields in open_corrected(monitored, path).items():
            truth = truths[target]
            if truth is not None:
                check_targets(fields.meanings, truth.meanings, fields.lead_times)
            times = set() if truth is None else set(epoch_seconds(truth.init_times).tolist())
            for init, start in enumerate(epoch_seconds(fields.init_times).tolist()):
                for place, lead in enumerate(fields.lead_times):
                    key = MonitoredForecast(str(target), start, lead)
                    if key in state.verified:
                        report.known += [key] * given
                    elif not given and state.waiting.get(key) != str(path):
                        continue
                    elif missing := fields.incomplete.get((init, place)):
                        report.incomplete[key] = f"{path} lacks {missing.count} of {missing.of} fields"
                    elif key.valid in times:
                        ready[key] = fields, init, place, path
                    else:
                        state.waiting[key] = str(path)
    for target, truth in truths.items():
        times = {key.valid for key in ready if key.target == str(target)}
        if truth is not None and times:
            truths[target] = check_analyses(monitored, target, truth, times, report.notes)
    history = ShareHistory(monitored.interval, monitored.step, state)
    for key in watched(sorted(ready, key=lambda key: (key.valid, key)), "verification: forecast"):
        fields, init, place, path = ready[key]
        target = next(one for one in monitored.task.targets if str(one) == key.target)
        truth = truths[target]
        assert truth is not None
        members = read_members(fields, init, place)
        analysis = read_members(truth, epoch_seconds(truth.init_times).tolist().index(key.valid), 0)[0]
        if not (np.isfinite(members).all(0) & np.isfinite(analysis)).any():
            report.incomplete[key] = f"{path} and its analysis have no cell in common"
        else:
            state.verified[key] = one = score_forecast(monitored, history, key, members, analysis, path)
            history.add(key, one)
            report.new.append(key)
            if (far := distance(one)) > FAR:
                report.far[key] = far
        state.waiting.pop(key, None)
    return report


def check_analyses(
    monitored: MonitoredTask, target: Variable, truth: Fields, times: set[int], notes: list[str]
) -> Fields:
    """Return the analyses of a target, masked as `truth_checks` says; add a note on implausible values at `times`."""
    mine = np.isin(epoch_seconds(truth.init_times), list(times))
    found = examine(replace(truth, init_times=truth.init_times[mine], cells=truth.cells[mine]), target, None)
    if monitored.truth_checks == "error":
        found.refuse()
    notes += (sentence.replace("data.archive.", "") for sentence in found.sentences(monitored.truth_checks))
    return checked(truth, monitored.truth_checks, lambda _: found)


def score_forecast(
    monitored: MonitoredTask,
    history: ShareHistory,
    key: MonitoredForecast,
    members: np.ndarray,
    analysis: np.ndarray,
    path: Path,
) -> VerifiedForecast:
    """Return the scores of one forecast; `members` (M, h, w).

    A forecast without a conformal layer is counted at the levels that the layer would have had at the forecast's start.
    """
    levels = member_levels(len(members), monitored.quantile_levels)
    values = np.sort(members, axis=0)  # missing members come last, and their cells are left out
    applied = has_conformal_layer(path, monitored.corrector)
    nominal = normal_scores(interval_levels(monitored.interval))
    low, high = (target := Variable.parse(key.target)).bounds
    limits = max(-np.inf if low is None else low, target.trace), np.inf if high is None else high
    shares = {}
    for region, area in monitored.cores.items():
        before = None if applied else history.scores_at(key, region)
        scores = nominal if before is None else ordered(before)
        if (found := shares_below(values, analysis, (nominal, scores), area, levels, limits)) is not None:
            # Rounded here and not in the file, so that a later run continues from the same numbers.
            shares[region] = found.round(9)
    return VerifiedForecast(str(path), applied, score_regions(values, analysis, monitored.weights, levels), shares)


def distance(one: VerifiedForecast) -> float:
    """Return the mean error over the largest region in units of the spread, 0 if there is no spread."""
    scores = next(iter(one.regions.values()))
    return abs(scores.error) / scores.variance**0.5 if scores.variance > 0 else 0.0


def open_corrected(monitored: MonitoredTask, path: Path) -> dict[Variable, Fields]:
    """Open the members of the targets in a file; at least one target must be there, at one of the lead times."""
    task = monitored.task
    found: dict[Variable, Fields] = {}
    absent: list[AbsentVariableError] = []
    for target in task.targets:
        try:
            leads = lead_times_of(path, target, names=monitored.names)
            if own := [lead for lead in task.lead_times if lead in leads]:
                found[target] = ensemble_fields(path, [target], own, names=monitored.names, missing="mask")
        except AbsentVariableError as error:
            absent.append(error)
    if len(absent) == len(task.targets):
        raise absent[0]
    if not found:
        raise InputError(
            f"{path} has none of the lead times of the corrector ({', '.join(map(str, task.lead_times))} h); name "
            "files that this corrector has corrected"
        )
    for fields in found.values():
        if not monitored.grid.matches(fields.grid):
            raise InputError(
                f"{path} has {fields.grid}, the corrector {monitored.grid}; name files that it has corrected"
            )
        if len(fields.numbers) < 2:
            raise InputError(f"{path} has one member only; monitor scores ensembles, so name files with members")
    return found


def open_analyses(monitored: MonitoredTask, target: Variable, analyses: Sequence[str]) -> Fields | None:
    """Open the analyses of a target, None if no file has any."""
    if not analyses:
        return None
    try:
        fields = analysis_fields(
            analyses, [target], names=monitored.names, target=monitored.target_grid, missing="mask"
        )
    except AbsentVariableError:
        if len(monitored.task.targets) == 1:
            raise
        return None
    if not monitored.grid.matches(fields.grid):
        raise InputError(
            f"analyses: {', '.join(analyses)} has {fields.grid}, the corrector {monitored.grid}; bring the analyses to "
            "that grid"
        )
    return fields


def read_members(fields: Fields, init: int, lead: int) -> np.ndarray:
    """Return one forecast of a single variable, (M, h, w) in double precision."""
    values = np.empty((len(fields.numbers), 1, *fields.grid.shape), np.float64)
    fields.read(fields.cells[init, lead], values)
    return values[:, 0]


def has_conformal_layer(path: Path, corrector: str) -> bool:
    """Return whether the sidecar of a file says that the layer of this corrector (SHA-256) moved its forecasts."""
    beside = sidecar_path(path)
    record = json.loads(beside.read_text("utf-8")) if beside.exists() else {}
    layers = record.get("options", {}).get("conformal", ())
    # The sidecar of an older file of this name does not count.
    return corrector in layers and record.get("output", {}).get("sha256") == sha256_of(path)


def check_sidecar(path: Path, corrector: str, notes: list[str]) -> None:
    """Raise `InputError` for a file of another corrector; note a missing record, and forecasts of a fallback."""
    beside = sidecar_path(path)
    try:
        record = json.loads(beside.read_text("utf-8"))
        hashes = {one["sha256"] for one in record["correctors"]}
        methods = record.get("counts", {}).get("forecasts", {})
        others = [f"{count} by on_problem={name}" for name, count in methods.items() if name != "corrector"]
    except FileNotFoundError:
        notes.append(f"{path} has no {path.name}.json beside it: which corrector wrote it is not known")
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{beside} is damaged ({error}); remove it, or correct the forecast again") from None
    if corrector not in (*hashes, EVERY_CORRECTOR):
        raise InputError(
            f"{path} was written by another corrector (its sidecar has not the SHA-256 {corrector[:12]}…); name files "
            "of this corrector, or set retrained=true in a new run_dir"
        )
    if others:
        notes.append(f"{path} has forecasts of a fallback, {' and '.join(others)}; they are scored as they were issued")


_Place = tuple[str, int, str]


class ShareHistory:
    """Tracked scores by target, lead time and region, as functions of time.

    Sums are kept in the order of valid times, so that a year of forecasts is added in a second.
    """

    def __init__(self, interval: float, step: float, state: MonitorState) -> None:
        self._levels, self._step = interval_levels(interval), step
        self._times: dict[_Place, list[int]] = {}
        self._sums: dict[_Place, list[np.ndarray]] = {}
        for key, one in sorted(state.verified.items(), key=lambda item: (item[0].valid, item[0])):
            self.add(key, one)

    def add(self, key: MonitoredForecast, one: VerifiedForecast) -> None:
        """Add the shares of a verified forecast in all regions."""
        for region, shares in one.cores.items():
            place = key.target, key.lead_time, region
            times, sums = self._times.setdefault(place, []), self._sums.setdefault(place, [])
            error = self._levels - shares
            position = bisect_right(times, key.valid)
            times.insert(position, key.valid)
            sums.insert(position, error + (sums[position - 1] if position else 0.0))
            for later in range(position + 1, len(sums)):
                sums[later] = sums[later] + error

    def scores_at(self, key: MonitoredForecast, region: str) -> np.ndarray:
        """Return the scores (3,) from all forecasts of the target and lead time that `key` starts after."""
        place = key.target, key.lead_time, region
        position = bisect_right(self._times.get(place, []), key.start)
        total = self._sums[place][position - 1] if position else 0.0
        return np.asarray(normal_scores(self._levels) + self._step * total)
