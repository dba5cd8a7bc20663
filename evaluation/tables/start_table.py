"""The CRPS of every start, `starts.csv`: from it `compare` computes paired intervals between models of several runs."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_path
from evaluation.scoring.aggregation import WeightedMean
from evaluation.scoring.scoreboard import Scoreboard

_COLUMNS = ("model", "start", "weight", "crps", "crps_fair")


def write_start_table(path: Path, board: Scoreboard, target: int) -> None:
    """Write the area-weighted CRPS, plain and fair, of each model and start over all lead times of one target.

    `weight` is the sum of the areas of the scored cells. Starts without a scored cell are left out.
    """
    everywhere = list(board.regions).index("global")
    starts, position = np.unique(board.init_times, return_inverse=True)
    with atomic_path(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(_COLUMNS)
        for name, tally in board.tallies.items():
            means = [tally.per_forecast[score][:, target, everywhere] for score in _COLUMNS[3:]]
            weight = np.bincount(position, means[0].weight, len(starts))
            totals = [np.bincount(position, mean.total, len(starts)) for mean in means]
            for k in np.flatnonzero(weight > 0).tolist():
                time = np.datetime64(int(starts[k]), "s").astype("datetime64[m]")
                numbers = (weight[k], *(total[k] / weight[k] for total in totals))
                table.writerow([name, time, *(f"{number:.17g}" for number in numbers)])


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
