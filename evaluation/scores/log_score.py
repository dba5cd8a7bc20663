"""The logarithmic score: minus the logarithm of the forecast density at the analysis."""

from __future__ import annotations

from evaluation.scores.score import CellStatistic, Score

LOG_SCORE = Score(
    name="log_score",
    title="log score",
    text="Mean of −log f(y) with the forecast density f; lower is better, and a change of the units adds a constant. "
    "For members, and for a climatology of past values, f is the normal density with their mean and standard "
    "deviation. Where values are repeated, such as 0 mm of rain, f is their probability.",
    reference="Good 1952, doi:10.1111/j.2517-6161.1952.tb00104.x; Gneiting & Raftery 2007, "
    "doi:10.1198/016214506000001437",
    statistics={"log_score": CellStatistic(lambda case: -case.forecast.log_prob(case.truth))},
    best="low",
    units="",
    zero=False,
)
SCORES = (LOG_SCORE,)
