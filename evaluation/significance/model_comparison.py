"""Comparison of several models: which differ, which may be the best, which differences the starts could show.

Tests are corrected for their number: those of models by Holm, those of the cells of a map by Benjamini and Hochberg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data_pipeline.common.messages import listed
from evaluation.significance.intervals import Estimate

POWER = 0.8
"""Probability with which a difference is found, by convention."""

Pairs = dict[str, dict[str, dict[str, Any]]]


def describe_pairs(
    names: Sequence[str],
    scores: Mapping[tuple[str, str], str],
    differences: Mapping[tuple[str, str], Estimate],
    relative: Mapping[tuple[str, str], Estimate],
) -> Pairs:
    """Return for each of `names`, and for each earlier name, the difference of their CRPS, and p-values.

    `scores` names the CRPS, plain or fair, that decides between two models. `differences` are between each model and
    each earlier one; `relative` are the same, divided by the CRPS of the earlier one. The p-values test the relative
    differences: the errors of all models grow in the same seasons, which makes a difference less certain, but not a
    ratio. `p_holm` is adjusted for the number of all pairs. `year_share` is the variance between years, as a share of
    the variance of single starts, that would make the relative difference insignificant.
    """
    p_values = {pair: p for pair, estimate in relative.items() if (p := estimate.p_value()) is not None}
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    found: Pairs = {name: {} for name in names}
    for (name, other), estimate in differences.items():
        interval = estimate.interval
        found[name][other] = {
            "score": scores[name, other],
            "crps_minus": None if estimate.value != estimate.value else estimate.value,
            "ci95": list(interval) if interval else None,
            "p": p_values.get((name, other)),
            "p_holm": adjusted.get((name, other)),
            "year_share": relative[name, other].year_share(),
        }
    return found


def best_set(pairs: Pairs) -> dict[str, Any]:
    """Return the models that cannot be told from the model with the lowest CRPS, as plain values.

    The set leaves out models whose difference to the `lowest` has an adjusted p-value below 5 %. The truly best model
    is in the set with a probability of at least 95 %, because the p-values are adjusted for all pairs, whichever model
    is the lowest. The model confidence set (Hansen et al. 2011, doi:10.3982/ECTA5771) promises the same.

    `lowest` is found model by model: a model takes the place of the lowest one before it if their difference is
    negative. Models without any difference are left out; `lowest` is None if there are no others.
    """
    known = [name for name in pairs if any(pair["crps_minus"] is not None for pair in _pairs_of(pairs, name))]
    if not known:
        return {"lowest": None, "models": [], "level": LEVEL, "text": ""}
    lowest = known[0]
    for name in known[1:]:
        minus = pairs[name][lowest]["crps_minus"]
        lowest = name if minus is not None and minus < 0 else lowest

    def told_apart(name: str) -> bool:
        p_holm = (pairs[name].get(lowest) or pairs[lowest][name])["p_holm"]
        return p_holm is not None and p_holm < LEVEL

    models = [lowest, *(name for name in known if name != lowest and not told_apart(name))]
    worse = [name for name in known if name not in models]
    others = f"{listed(models[1:])} cannot be told from it" if models[1:] else "every other model is worse"
    if models[1:] and worse:
        others += f"; {listed(worse)} {'is' if len(worse) == 1 else 'are'} worse"
    text = f"{lowest} has the lowest CRPS; {others} (5 % level, Holm's correction for all pairs)."
    return {"lowest": lowest, "models": models, "level": LEVEL, "text": text}


def detectable_differences(starts: int, gains: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Any]:
    """Return the smallest true differences that a test on these starts would find with 80 % probability.

    `gains[REFERENCE][MODEL]` is the difference of the CRPS of reference and model, divided by the CRPS of raw. The
    result holds values in per cent, None where there is no interval, and a sentence.
    """
    models: dict[str, dict[str, float | None]] = {}
    sentences = []
    for reference, estimates in gains.items():
        found = {name: estimate.detectable(POWER) for name, estimate in estimates.items()}
        for name, share in found.items():
            models.setdefault(name, {})[reference] = None if share is None else 100 * share
        parts = [f"{100 * share:.2g} % ({name})" for name, share in found.items() if share is not None]
        if parts:
            sentences.append(f"from {reference} {listed(parts)}")
    text = ""
    if sentences:
        text = (
            f"With these {starts} starts, a test at the 5 % level finds a true difference in {POWER:.0%} of cases if "
            f"it is at least this share of raw's CRPS: {'; '.join(sentences)}."
        ).replace("80%", "80 %")
    return {"level": LEVEL, "power": POWER, "models": models, "text": text}


def _pairs_of(pairs: Pairs, name: str) -> list[dict[str, Any]]:
    """Return the pairs of a model with all others."""
    return [*pairs[name].values(), *(others[name] for others in pairs.values() if name in others)]


LEVEL = 0.05
"""Probability of a wrong statement that is accepted, in all tests."""


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the adjusted p-values of a family of tests.

    If all hypotheses with an adjusted p-value below 5 % are rejected, the probability of a wrong rejection among them
    is at most 5 %, however the tests depend on each other. The k-th smallest of m p-values becomes the largest
    (m - j + 1) p(j) of all j <= k (Holm 1979, Scandinavian Journal of Statistics 6, 65-70).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * np.asarray(p_values, float)[order]), 1)
    return adjusted.tolist()


def discoveries(p_values: np.ndarray, rate: float = LEVEL) -> np.ndarray:
    """Return where a field of p-values is significant, with the expected share of false ones at most `rate`.

    All p-values up to the largest p(k) <= rate k/m are significant, for the k-th smallest of m (Benjamini & Hochberg
    1995, doi:10.1111/j.2517-6161.1995.tb02031.x). This also holds for cells with positive correlations, as on a
    weather map (Benjamini & Yekutieli 2001, doi:10.1214/aos/1013699998; Wilks 2016, doi:10.1175/BAMS-D-15-00267.1).
    NaN p-values are no tests.
    """
    tests = np.isfinite(p_values)
    ranked = np.sort(p_values[tests])
    passed = np.flatnonzero(ranked <= rate * np.arange(1, len(ranked) + 1) / max(len(ranked), 1))
    if len(passed) == 0:
        return np.zeros(p_values.shape, bool)
    with np.errstate(invalid="ignore"):
        significant: np.ndarray = p_values <= ranked[passed[-1]]
    return significant
