"""The correlation of anomalies: departures of the forecast's mean and of the truth from the climatology."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from evaluation.scores.case import Case
from evaluation.scores.extremes import no_climatology, unknown_climate
from evaluation.scores.ratios import divide
from evaluation.scores.score import CellStatistic, Score


def _anomalies(case: Case) -> tuple[Tensor, Tensor]:
    """Return the anomalies of the forecast's mean and of the truth; 0 where there is no climatology."""
    assert case.climate is not None
    truth, unknown = (case.truth - case.climate.mean).double(), case.once(unknown_climate)
    return (truth + case.error).masked_fill(unknown, 0), truth.masked_fill(unknown, 0)


def _correlation(anomaly_product: np.ndarray, forecast_anomaly: np.ndarray, truth_anomaly: np.ndarray) -> np.ndarray:
    return divide(anomaly_product, np.sqrt(forecast_anomaly * truth_anomaly))


ACC = Score(
    name="acc",
    title="anomaly correlation",
    text="Σ f y / √(Σ f² Σ y²) over all cells and starts together, with the departures f of the forecast's mean and y "
    "of the analysis from the mean of the climatology. No mean is subtracted from f and y, and it is not a mean of the "
    "correlations of single maps.",
    reference="Murphy & Epstein 1989, doi:10.1175/1520-0493(1989)117<0572:SSACCI>2.0.CO;2",
    statistics={
        "anomaly_product": CellStatistic(lambda case: case.once(_anomalies)[0] * case.once(_anomalies)[1]),
        "forecast_anomaly": CellStatistic(lambda case: case.once(_anomalies)[0].square()),
        "truth_anomaly": CellStatistic(lambda case: case.once(_anomalies)[1].square()),
    },
    value=_correlation,
    best="one",
    units="",
    missing=no_climatology,
)
SCORES = (ACC,)
