"""Selection: which forecasts of a task are used on some dates, and a ledger of the forecasts that are left out.

A forecast is used if it has an analysis, all its inputs and all its fields. `DataSource.missing` decides about missing
fields, both of the ensemble and of the analysis:

- `error`: the first missing field raises an `InputError`;
- `mask`: the forecast is used, with NaN; models see the mask, and missing truth is not scored;
- `drop`: the forecast is left out and counted.

Missing fields of all members count, even if only some members are read, so that scores with fewer members are of the
same forecasts. If all fields of a forecast are missing, it is left out with `mask` too.

If only all fields of all members of one or several groups (`Task.systems`) are missing, the forecast is used with the
other members (`without_group`), unless the policy is `drop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.dates import Dates, epoch_seconds
from data_pipeline.ledger import Ledger, Omission
from data_pipeline.protocols import DataSource, Fields, MissingFields, MissingPolicy
from data_pipeline.samples.inputs import OpenedTask, starts_without_input
from data_pipeline.task import Task


class Selection(NamedTuple):
    """The used forecasts, as positions (start, lead time, analysis), and the ledger of all forecasts."""

    keys: list[tuple[int, int, int]]
    ledger: Ledger


def select_forecasts(source: DataSource, task: Task, opened: OpenedTask, dates: Dates) -> Selection:
    """Select the forecasts of `task`, as `inputs.open_task` opened it, that are valid on `dates` and can be used.

    Raises an `InputError` if no forecast can be used, and with `source.missing="error"` for the first missing field.
    """
    selection = survey_forecasts(source, task, opened, dates, source.missing)
    if not selection.keys:
        starts, ledger = opened.inputs.init_times, selection.ledger
        reasons = "".join(f"; {text}" for text in ledger.sentences())
        raise InputError(
            f"no forecast that is valid in {dates} can be used: the ensemble starts between {starts.min()} and "
            f"{starts.max()}, {ledger.forecasts:,} of its forecasts are valid then{reasons}; change data.split or add "
            "files"
        )
    return selection


def survey_forecasts(
    source: DataSource, task: Task, opened: OpenedTask, dates: Dates, missing: MissingPolicy
) -> Selection:
    """Select forecasts like `select_forecasts`, by the policy `missing`; the selection may be empty."""
    ensemble, truth = opened.inputs, opened.truth
    without_input = {
        int(epoch_seconds(start)): channels for start, channels in starts_without_input(ensemble, empty=True).items()
    }
    known = _known(source, task)
    # In datasets of xarray, all targets may be missing at one time. This time then has no analysis, as in files.
    unknown = {k for (k, _), lacks in truth.incomplete.items() if lacks.count == lacks.of}
    analyses = {time: k for k, time in enumerate(epoch_seconds(truth.init_times).tolist()) if k not in unknown}
    positions: dict[tuple[int, int], tuple[int, int] | None] = dict.fromkeys(known)
    positions |= {(start, lead): None for start in without_input for lead in ensemble.lead_times}
    positions |= {
        (start, lead): (i, j)
        for i, start in enumerate(epoch_seconds(ensemble.init_times).tolist())
        for j, lead in enumerate(ensemble.lead_times)
    }
    forecasts = sorted(positions)
    valid = [start + 3600 * lead for start, lead in forecasts]
    times = np.array(valid, "datetime64[s]")
    keys: list[tuple[int, int, int]] = []
    omissions: list[Omission] = []
    first_fault = ""
    inside, excluded = dates.contains(times), dates.excludes(times)
    for n in np.flatnonzero(inside | excluded).tolist():
        (start, lead), position = forecasts[n], positions[forecasts[n]]
        used = False
        if excluded[n]:
            omissions.append(Omission(start, lead, "near_split"))
        elif one := known.get((start, lead)):
            omissions.append(one)
            used = one.used
        elif start in without_input:
            omissions.append(Omission(start, lead, "no_input", without_input[start]))
        elif valid[n] not in analyses:
            omissions.append(Omission(start, lead, "no_analysis"))
        elif lacks := _missing_fields(ensemble, truth, position, analyses[valid[n]]):
            used, place = missing == "mask" and lacks.count < lacks.of, f"member {lacks.number}, "
            place = f"{place * (' truth' not in lacks.channels[0])}{Path(lacks.file).name}"
            if lacks.gone and position and (absent := absent_systems(task, ensemble, position)):
                used = missing != "drop"
                omissions.append(Omission(start, lead, "without_group" if used else "no_group", absent))
            else:
                omissions.append(Omission(start, lead, "masked" if used else "missing_field", lacks.channels, place))
                first_fault = first_fault or fault(lacks, start, lead)
        else:
            used = True
        if used and position is not None:
            keys.append((*position, analyses[valid[n]]))
    ledger = Ledger(int(inside.sum() + excluded.sum()), tuple(omissions))
    if missing == "error" and first_fault:
        raise InputError(
            f"{first_fault}, the first of {len(ledger.by_reason['missing_field']):,} forecasts that lack a field; "
            "complete the files, or set data.archive.missing to mask (use these forecasts, with missing values) or to "
            "drop (leave them out)"
        )
    return Selection(keys, ledger)


def absent_systems(task: Task, ensemble: Fields, position: tuple[int, int]) -> tuple[str, ...]:
    """Return the systems of a task without any member in the forecast at a position, or in the whole `ensemble`.

    A system that only this forecast lacks counts if the forecast has all fields of the other systems.
    """
    lacks = ensemble.incomplete.get(position) if task.systems else None
    left = [number for number in ensemble.numbers if lacks is None or number not in lacks.gone]
    absent = task.absent(left)
    if left and len(task.present(ensemble.numbers, absent)) == len(left):
        return absent
    return task.absent(ensemble.numbers)


def present_members(task: Task, numbers: Sequence[int], ledger: Ledger) -> dict[tuple[int, int], list[int]]:
    """Return the positions of the members of each forecast that lacks a group, by start and lead time."""
    found = ledger.by_reason.get("without_group", [])
    return {one.key: task.present(numbers, one.channels) for one in found}


def _known(source: DataSource, task: Task) -> dict[tuple[int, int], Omission]:
    """Return the source's own omissions that concern the lead times and channels of a task, by start and lead time."""
    wanted = {*map(str, task.fields_read), *(f"{target} truth" for target in task.targets)}
    found = {}
    for one in source.omissions:
        if one.lead in task.lead_times and one.reason in ("without_group", "no_group"):
            grouped = one.reason == "no_group" or {*one.channels} <= {name for name, _ in task.systems}
            found[one.key] = one if grouped else replace(one, reason="missing_field")
            continue
        channels = tuple(channel for channel in one.channels if channel in wanted)
        if one.lead in task.lead_times and (channels or not one.channels):
            found[one.key] = replace(one, channels=channels)
    return found


def _missing_fields(
    ensemble: Fields, truth: Fields, position: tuple[int, int] | None, analysis: int
) -> MissingFields | None:
    """Return the missing fields of the forecast at `position` and of its analysis; None if both are complete."""
    members, targets = position and ensemble.incomplete.get(position), truth.incomplete.get((analysis, 0))
    if targets:
        targets = replace(targets, channels=tuple(f"{channel} truth" for channel in targets.channels), gone=())
    if members and targets:
        return replace(members, channels=members.channels + targets.channels, gone=())
    return members or targets


def fault(lacks: MissingFields, start: int, lead: int) -> str:
    """Return the words for the first missing field of the forecast of a start (seconds since 1970) at a lead time."""
    what = "all fields" if lacks.count == lacks.of else f"{lacks.channels[0]} of member {lacks.number}"
    if lacks.channels[0].endswith(" truth"):
        what = lacks.channels[0]
    return f"{lacks.file} lacks {what} for the forecast of {np.datetime64(start, 's')} at {lead} h"
