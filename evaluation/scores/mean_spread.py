"""Errors of the forecast's mean, and the spread that a calibrated forecast would have."""

from __future__ import annotations

import numpy as np

from evaluation.scores.ratios import divide
from evaluation.scores.score import CellStatistic, Score

ERROR = CellStatistic(lambda case: case.error, map=True)
SQUARED_ERROR = CellStatistic(lambda case: case.error.square(), map=True)
EXPECTED = CellStatistic(lambda case: case.expected_squared_error, map=True)

RMSE = Score(
    name="rmse",
    title="RMSE",
    text="Root of the mean squared error of the forecast's mean.",
    reference="Wilks 2019, Statistical Methods in the Atmospheric Sciences, doi:10.1016/C2017-0-03921-6",
    statistics={"squared_error": SQUARED_ERROR},
    value=lambda squared_error: np.sqrt(squared_error),
    best="low",
    default=True,
)
BIAS = Score(
    name="bias",
    title="bias",
    text="Mean of the forecast's mean minus the analysis.",
    reference="Wilks 2019, Statistical Methods in the Atmospheric Sciences, doi:10.1016/C2017-0-03921-6",
    statistics={"error": ERROR},
    best="zero",
    default=True,
)
SPREAD = Score(
    name="spread",
    title="spread",
    text="Root of the mean variance; for M random members the unbiased variance times (M + 1)/M, because the mean of "
    "few members is uncertain too.",
    reference="Fortin et al. 2014, doi:10.1175/JHM-D-14-0008.1",
    statistics={"expected_squared_error": EXPECTED},
    value=lambda expected_squared_error: np.sqrt(expected_squared_error),
    best=None,
    default=True,
)
SPREAD_SKILL = Score(
    name="spread_skill",
    title="spread / error",
    text="Spread divided by RMSE: 1 for a calibrated forecast, below 1 for an overconfident one.",
    reference="Fortin et al. 2014, doi:10.1175/JHM-D-14-0008.1",
    statistics={"squared_error": SQUARED_ERROR, "expected_squared_error": EXPECTED},
    value=lambda squared_error, expected_squared_error: divide(np.sqrt(expected_squared_error), np.sqrt(squared_error)),
    best="one",
    units="",
    default=True,
)
SCORES = (RMSE, BIAS, SPREAD, SPREAD_SKILL)
