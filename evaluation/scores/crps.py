"""The continuous ranked probability score (CRPS), plain and fair."""

from __future__ import annotations

from evaluation.scores.score import CellStatistic, Score

PLAIN_CRPS = Score(
    name="crps",
    title="CRPS",
    text="∫ (F(x) − 1{x ≥ y})² dx: the squared distance of the forecast's distribution F from the analysis y. For a "
    "single number it is the absolute error; for M members, 1/M Σ|xᵢ − y| − 1/(2M²) ΣΣ|xᵢ − xⱼ|.",
    reference="Gneiting & Raftery 2007, doi:10.1198/016214506000001437",
    statistics={"crps": CellStatistic(lambda case: case.crps, map=True)},
    best="low",
    default=True,
)
FAIR_CRPS = Score(
    name="crps_fair",
    title="fair CRPS",
    text="The CRPS that infinitely many members of the same kind would have: the sum over pairs is divided by "
    "2M(M − 1). Equal to the CRPS for a distribution in closed form.",
    reference="Ferro 2014, doi:10.1002/qj.2270",
    statistics={"crps_fair": CellStatistic(lambda case: case.crps_fair, map=True)},
    best="low",
    default=True,
)
SCORES = (PLAIN_CRPS, FAIR_CRPS)
