"""The scores of every station, `stations.csv`: a row for each station, lead time, model and score."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_pipeline.common.files import atomic_path
from data_pipeline.grids.points import Points
from evaluation.scores.ratios import skill
from evaluation.scoring.scoreboard import Scoreboard


class StationRow(NamedTuple):
    """One row; numbers that are undefined are NaN and empty in the file.

    `altitude` is in m. `skill` is 1 - value / value of the raw ensemble at the same station, for scores that are 0 at
    best. `n_forecasts` counts the forecasts with an observation.
    """

    station: str
    latitude: float
    longitude: float
    altitude: float
    model: str
    score: str
    target: str
    units: str
    lead_time: str
    value: float
    skill: float
    n_forecasts: int


def write_station_table(path: Path, board: Scoreboard, target: int, units: str = "") -> bool:
    """Write the rows of one target to a CSV file, and return True; do nothing on a grid and for points without ids."""
    if not isinstance(board.grid, Points) or not board.grid.ids:
        return False
    with atomic_path(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(StationRow._fields)
        for row in station_rows(board, board.grid, target, units):
            table.writerow([f"{one:.9g}" * (one == one) if isinstance(one, float) else one for one in row])
    return True


def station_rows(board: Scoreboard, stations: Points, target: int, units: str = "") -> Iterator[StationRow]:
    """Yield the rows of one target, station by station; only scores whose averages are kept for every cell."""
    maps = {name: tally.per_cell for name, tally in board.tallies.items()}
    kept = [score for score in board.computed if score.labels is None and set(score.statistics) <= set(maps["raw"])]
    altitudes = stations.altitudes or (np.nan,) * len(stations.ids)
    values = {
        (name, score.name): score.value(**{one: of_model[one].value[:, target, :, 0] for one in score.statistics})
        for name, of_model in maps.items()
        for score in kept
    }
    counts = {name: next(iter(of_model.values())).weight[:, target, :, 0] for name, of_model in maps.items()}
    for place, station in enumerate(stations.ids):
        where = station, stations.latitudes[place], stations.longitudes[place], float(altitudes[place])
        for number, lead in enumerate(board.task.lead_times):
            for name in maps:
                for score in kept:
                    if score.is_fair and not board.fair_is_valid(name):
                        continue
                    value, raw = (values[one, score.name][number, place] for one in (name, "raw"))
                    gain = float(skill(value, raw)) if score.best == "low" else np.nan
                    variable = board.task.targets[target]
                    yield StationRow(
                        *where, name, score.name, str(variable),
                        (variable.units or units) if score.units == "target" else score.units,
                        str(lead), float(value), gain, round(float(counts[name][number, place])),
                    )  # fmt: skip
