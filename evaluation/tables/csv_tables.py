"""Tables in CSV: `scores.csv` with all scores, `starts.csv` with the CRPS of every start, and `stations.csv`.

`compare` computes paired intervals between models of several runs from `starts.csv`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import write_csv
from data_pipeline.grids.points import Points
from evaluation.scores.ratios import skill
from evaluation.scoring.aggregation import WeightedMean
from evaluation.scoring.scoreboard import Scoreboard
from evaluation.tables.score_rows import GLOBAL, OVERALL, ScoreRow

ROW_COLUMNS = (
    "part", "model", "form", "score", "label", "target", "units", "lead_time", "region", "season", "value", "low",
    "high", "skill", "skill_low", "skill_high", "n_forecasts", "n_dates",
)  # fmt: skip
"""`part` is `all`, or names what the forecasts are selected by: `lead`, `region`, `season`, or several with `+`."""


def write_score_table(path: Path, rows: Iterable[ScoreRow]) -> None:
    """Write the rows with a scored cell, of all hours and all members, to a CSV file, rows of all forecasts first.

    Undefined numbers are empty, and so is the lead time (hours) of a row of all lead times: columns have one type.
    """
    kept = [(_part(row), row) for row in rows if row.n_forecasts and row.hour == row.members == OVERALL]
    cells = (
        row._asdict()
        | {"part": "+".join(part) or OVERALL, "lead_time": "" if row.lead_time == OVERALL else row.lead_time}
        for part, row in sorted(kept, key=lambda one: len(one[0]))
    )
    write_csv(path, ROW_COLUMNS, ([one[column] for column in ROW_COLUMNS] for one in cells))


def _part(row: ScoreRow) -> list[str]:
    chosen = {"lead": row.lead_time != OVERALL, "region": row.region != GLOBAL, "season": row.season != OVERALL}
    return [kind for kind, is_chosen in chosen.items() if is_chosen]


_COLUMNS = ("model", "start", "weight", "crps", "crps_fair")


def write_start_table(path: Path, board: Scoreboard, target: int) -> None:
    """Write the area-weighted CRPS, plain and fair, of each model and start over all lead times of one target.

    `weight` is the sum of the areas of the scored cells. Starts without a scored cell are left out.
    """
    everywhere = list(board.regions).index("global")
    starts, position = np.unique(board.init_times, return_inverse=True)
    rows: list[list[object]] = []
    for name, tally in board.tallies.items():
        means = [tally.per_forecast[score][:, target, everywhere] for score in _COLUMNS[3:]]
        weight = np.bincount(position, means[0].weight, len(starts))
        totals = [np.bincount(position, mean.total, len(starts)) for mean in means]
        for k in np.flatnonzero(weight > 0).tolist():
            time = np.datetime64(int(starts[k]), "s").astype("datetime64[m]")
            numbers = (weight[k], *(total[k] / weight[k] for total in totals))
            rows.append([name, time, *(f"{number:.17g}" for number in numbers)])
    write_csv(path, _COLUMNS, rows)


class StartScores:
    """The content of `starts.csv`: averages over each of the increasing `times` (seconds since 1970), by model."""

    def __init__(self, times: np.ndarray, means: dict[str, dict[str, WeightedMean]]) -> None:
        self.times, self._means = times, means

    @classmethod
    def read(cls, path: Path) -> StartScores:
        """Read a file; a damaged one raises `InputError`."""
        rows: dict[str, dict[int, tuple[float, float, float]]] = {}
        try:
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    start = int(np.datetime64(row["start"], "s").astype(np.int64))
                    weight, crps, fair = (float(row[name]) for name in _COLUMNS[2:])
                    rows.setdefault(row["model"], {})[start] = (weight, crps, fair)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} is damaged ({error}); run deepweather evaluate again, or remove the file to compare without "
                "intervals"
            ) from None
        times = np.array(sorted({start for found in rows.values() for start in found}), np.int64)
        means: dict[str, dict[str, WeightedMean]] = {}
        for name, found in rows.items():
            table = np.array([found.get(start, (0.0, 0.0, 0.0)) for start in times.tolist()]).reshape(-1, 3)
            area = table[:, 0]
            means[name] = {score: WeightedMean(area * table[:, k], area) for k, score in enumerate(_COLUMNS[3:], 1)}
        return cls(times, means)

    def mean(self, model: str, score: str) -> WeightedMean | None:
        """Return `crps` or `crps_fair` of a model by start; None if the file lacks the model."""
        return self._means.get(model, {}).get(score)


_STATION_COLUMNS = (
    "station", "latitude", "longitude", "altitude", "model", "score", "target", "units", "lead_time", "value", "skill",
    "n_forecasts",
)  # fmt: skip
"""`altitude` is in m. `skill` is 1 - value / value of the raw ensemble at the same station, for scores that are 0 at
best. `n_forecasts` counts the forecasts with an observation."""


def write_station_table(path: Path, board: Scoreboard, target: int, units: str = "") -> bool:
    """Write the rows of one target to a CSV file, and return True; do nothing on a grid and for points without ids."""
    if not isinstance(board.grid, Points) or not board.grid.ids:
        return False
    write_csv(path, _STATION_COLUMNS, _station_rows(board, board.grid, target, units))
    return True


def _station_rows(board: Scoreboard, stations: Points, target: int, units: str) -> Iterator[tuple[object, ...]]:
    """Yield the rows of one target, station by station; only scores whose averages are kept for every cell."""
    maps = {name: tally.per_cell for name, tally in board.tallies.items()}
    kept = [score for score in board.computed if not score.labels and set(score.statistics) <= set(maps["raw"])]
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
                    yield (
                        *where, name, score.name, str(variable),
                        (variable.units or units) if score.units == "target" else score.units,
                        str(lead), float(value), gain, round(float(counts[name][number, place])),
                    )  # fmt: skip
