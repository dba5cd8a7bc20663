"""Scores of extremes: CRPS weighted by the extreme forecast index, this index, shift of tails, crossing point."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import tee

import numpy as np
import torch
from torch import Tensor

from data_pipeline.statistics.efi import CROSSING_LEVELS, LARGEST_SHIFT, crossing_of_shares, index_of_shares
from evaluation.scores.binned_probability import share_from
from evaluation.scores.case import Case
from evaluation.scores.roc import area_below
from evaluation.scores.score import Binned, CellStatistic, Score, Settings
from evaluation.scores.threshold import climate_quantile
from models.distribution import Distribution

EECRPS_REFERENCE = "Ashkboos et al. 2022, arXiv:2206.14786"
EFI_REFERENCE = "Lalaurette 2003, doi:10.1256/qj.02.152"
SOT_REFERENCE = "Zsótér 2006, ECMWF Newsletter 107, 8-17"
TAILS = {"< 5 %": (0.05, 0.10, 0.01), "> 95 %": (0.95, 0.90, 0.99)}
"""Events: the level of climatology that the truth passes, then the inner and the outer level of `shift_of_tails`."""
INDEX_BINS = 100
"""Bins of the index between -1 and 1, and of the shift of tails between its limits."""
INDEX_LEVELS = np.sin(np.linspace(0, np.pi / 2, 61)) ** 2
"""Levels of the climate's quantiles: p = sin² a at equal steps of a. All levels have nearly the same weight."""
_OUTERMOST = 1e-6
_AT_ONCE = 4
"""Quantiles of the climate in memory at once: all of them would be the largest fields of an evaluation."""


def no_extremeness(settings: Settings) -> str:
    """Return why the extreme forecast index of the raw ensemble is not known, "" if it is."""
    return "" if settings.extremeness else "there is no climate of the model; give its file by the option efi_climate"


def no_climatology(settings: Settings) -> str:
    """Return why there is no climatology, "" if there is one."""
    return "" if settings.climatology else "there is no climatology; add it to the option references"


def index_of(forecast: Distribution, climate: Distribution, eps: Tensor | float = -torch.inf) -> Tensor:
    """Return the extreme forecast index (*S) of a forecast against the quantiles of the climate at `INDEX_LEVELS`.

    F at a quantile is the probability of values below it, plus half the probability of the quantile itself. The part of
    the climate up to `eps` is left out; see `data_pipeline.statistics.efi`. The index is between -1 (all probability
    below the climate) and 1. The lowest and the highest value of the climate are its quantiles at 10⁻⁶ and 1 - 10⁻⁶,
    because the extreme quantiles of a normal distribution are infinite.
    """
    quantile, levels = _quantiles(climate, INDEX_LEVELS), range(len(INDEX_LEVELS))
    lowest = torch.full_like(quantile(0), -torch.inf)
    lows = (forecast.cdf(torch.nextafter(quantile(k), lowest)).double() for k in levels)
    below, again = tee(lows)
    equal = (forecast.cdf(quantile(k)) - low for k, low in zip(levels, again, strict=True))
    index: Tensor = index_of_shares(below, equal, ((quantile(k) > eps).double() for k in levels), INDEX_LEVELS)
    return index.to(forecast.mean)


def _quantiles(climate: Distribution, levels: np.ndarray) -> Callable[[int], Tensor]:
    """Return a function that gives the quantile at a level by its position, and keeps only a few of them."""
    parts = torch.from_numpy(levels).clamp(_OUTERMOST, 1 - _OUTERMOST).to(climate.mean).split(_AT_ONCE)
    quantiles = lru_cache(1)(lambda part: climate.quantile(parts[part]))
    return lambda k: quantiles(k // _AT_ONCE)[k % _AT_ONCE]


def shift_of_tails(
    forecast: Distribution, climate: Distribution, inner: float, outer: float, eps: Tensor | float = -torch.inf
) -> Tensor:
    """Return (Q(inner) - C(outer))/(C(outer) - C(inner)), with quantiles Q of the forecast and C of the climate, (*S).

    For the upper tail, with 0.9 and 0.99, it is positive if a tenth of the probability lies beyond the 99th percentile
    of the climate (Zsótér 2006). With 0.1 and 0.01, it is the same for the lower tail. It is cut off at ±10. NaN where
    the quantiles of the climate differ by no more than `eps`, or by nothing, such as 0 mm of rain.
    """
    near, far = (climate_quantile(climate, level) for level in (inner, outer))
    distance = far - near
    level = torch.tensor([inner], dtype=far.dtype, device=far.device)
    known = distance.abs() > torch.as_tensor(eps).clamp(min=0)
    shift = (forecast.quantile(level)[0] - far) / torch.where(known, distance, torch.nan)
    return shift.clamp(-LARGEST_SHIFT, LARGEST_SHIFT)


def crossing_point(forecast: Distribution, climate: Distribution) -> Tensor:
    """Return the level (*S) at which the quantiles of a forecast fall below the climate's; see `crossing_of_shares`."""
    quantile = _quantiles(climate, CROSSING_LEVELS)
    crossing: Tensor = crossing_of_shares(lambda k: forecast.cdf(quantile(k)))
    return crossing


def diagonal_score(crossing: Tensor, truth: Tensor) -> Tensor:
    """Return the expense of trusting a crossing point, from it and the climatological level of the truth, (*S).

    At each level τ, a user protects if the crossing point is at least τ. A false alarm costs 1 - τ, the climatological
    probability of a value above τ, and a missed event costs τ. The score is the integral over all τ.
    """
    missed, alarm = (truth.square() - crossing.square()) / 2, ((1 - truth).square() - (1 - crossing).square()) / 2
    return torch.where(truth > crossing, missed, alarm)


def _index(case: Case) -> Tensor:
    assert case.climate is not None
    return index_of(case.forecast, case.climate, case.eps)


def _absolute(case: Case) -> Tensor:
    return case.once(_index).abs().masked_fill(case.once(unknown_climate), 0)


def unknown_climate(case: Case) -> Tensor:
    """Return where there is no climatology, (B, T, H, W)."""
    assert case.climate is not None
    return ~(case.climate.mean.isfinite() & case.climate.std.isfinite())


def _weighted(case: Case, crps: Tensor) -> Tensor:
    assert case.extremeness is not None
    return (case.extremeness.abs() * crps.double()).nan_to_num(0)


def _known(case: Case) -> Tensor:
    assert case.extremeness is not None
    return case.extremeness.isfinite().to(case.truth)


def _by_index(case: Case) -> Binned:
    position = (case.once(_index).nan_to_num(0) + 1) / 2
    events = torch.stack(
        [_beyond(case, passed, sign) for (passed, _, _), sign in zip(TAILS.values(), (-1, 1), strict=True)]
    )
    # The lower tail has high values where the index is low.
    return _in_bins(
        torch.stack([1 - position, position]), events, torch.stack([case.once(unknown_climate)] * len(TAILS))
    )


def _by_shift(case: Case) -> Binned:
    assert case.climate is not None
    shifts = torch.stack([shift_of_tails(case.forecast, case.climate, *tail[1:], case.eps) for tail in TAILS.values()])
    events = torch.stack([_beyond(case, tail[0], sign) for tail, sign in zip(TAILS.values(), (-1, 1), strict=True)])
    # NaN where the climate has no tail, such as 0 mm of rain at both percentiles: the same cells for all models.
    return _in_bins((shifts.nan_to_num(0) / LARGEST_SHIFT + 1) / 2, events, shifts.isnan())


def _diagonal(case: Case) -> Tensor:
    assert case.climate is not None
    score = diagonal_score(crossing_point(case.forecast, case.climate), case.climate.cdf(case.truth))
    return score.masked_fill(case.once(unknown_climate), 0)


def _beyond(case: Case, level: float, sign: int) -> Tensor:
    assert case.climate is not None
    edge = climate_quantile(case.climate, level)
    return (sign * (case.truth - edge) > 0).to(case.truth)


def _in_bins(position: Tensor, events: Tensor, unknown: Tensor) -> Binned:
    index = (position * INDEX_BINS).long().clamp(0, INDEX_BINS - 1)
    return Binned(index, INDEX_BINS, ((~unknown).to(events), events.masked_fill(unknown, 0)))


def _area(averages: np.ndarray) -> np.ndarray:
    parts = averages.reshape(*averages.shape[:-1], len(TAILS), 2, INDEX_BINS)
    share, events = parts[..., 0, :], parts[..., 1, :]
    return area_below(share_from(events), share_from(share - events))


KNOWN = CellStatistic(_known)
CLIMATE_KNOWN = CellStatistic(lambda case: (~case.once(unknown_climate)).to(case.truth))
_climate_score = partial(Score, units="", missing=no_climatology)
EECRPS_PLAIN = Score(
    name="eecrps",
    title="EECRPS",
    text="Mean of |EFI| · CRPS over the cells in which the extreme forecast index (EFI) of the raw ensemble is known: "
    "the same weights for all models, and little weight where the ensemble is near its climate. Not divided by the "
    "mean of |EFI|, so only values with the same climate and the same form of the EFI can be compared.",
    reference=EECRPS_REFERENCE,
    statistics={"eecrps": CellStatistic(lambda case: _weighted(case, case.crps)), "efi_known": KNOWN},
    best="low",
    missing=no_extremeness,
)
EECRPS_FAIR = Score(
    name="eecrps_fair",
    title="fair EECRPS",
    text="The EECRPS with the fair CRPS in place of the CRPS.",
    reference=EECRPS_REFERENCE + "; Ferro 2014, doi:10.1002/qj.2270",
    statistics={"eecrps_fair": CellStatistic(lambda case: _weighted(case, case.crps_fair)), "efi_known": KNOWN},
    best="low",
    missing=no_extremeness,
)
MEAN_INDEX = _climate_score(
    name="efi",
    title="mean |EFI|",
    text="Mean absolute extreme forecast index of the model's own forecast, with the climatology as climate: how "
    "often and how far a forecast departs from it.",
    reference=EFI_REFERENCE,
    statistics={"efi_absolute": CellStatistic(_absolute), "climate_known": CLIMATE_KNOWN},
    best=None,
)
INDEX_AREA = _climate_score(
    name="efi_roc_area",
    title="ROC area of the EFI",
    text="The chance that the extreme forecast index of the model was more extreme in a case beyond the 5th or 95th "
    "percentile of the climatology than in another case, from 100 bins.",
    reference=EFI_REFERENCE,
    statistics={"efi_bins": CellStatistic(_by_index, size=2 * len(TAILS) * INDEX_BINS)},
    value=lambda efi_bins: _area(efi_bins),
    best="one",
    labels=tuple(TAILS),
)
SHIFT_AREA = _climate_score(
    name="sot_roc_area",
    title="ROC area of the shift of tails",
    text="The same chance for the shift of tails (SOT): the forecast's 90th percentile minus the climatology's 99th, "
    "divided by the difference of the climatology's 99th and 90th; for the lower tail the 10th and the 1st. From 100 "
    "bins between −10 and 10.",
    reference=SOT_REFERENCE,
    statistics={"sot_bins": CellStatistic(_by_shift, size=2 * len(TAILS) * INDEX_BINS)},
    value=lambda sot_bins: _area(sot_bins),
    best="one",
    labels=tuple(TAILS),
)
CROSSING_SCORE = _climate_score(
    name="diagonal_score",
    title="diagonal score of the crossing point",
    text="The crossing-point forecast (CPF) is the level at which the quantiles of the forecast fall below those of "
    "the climatology. At each level τ up to the CPF, a user protects. A false alarm costs 1 − τ, a missed event τ. The "
    "score is the integral over all τ.",
    reference="Ben Bouallègue 2021, doi:10.1080/16000870.2021.1913007",
    statistics={"diagonal_score": CellStatistic(_diagonal), "climate_known": CLIMATE_KNOWN},
    best="low",
)
SCORES = (EECRPS_PLAIN, EECRPS_FAIR, MEAN_INDEX, INDEX_AREA, SHIFT_AREA, CROSSING_SCORE)
