"""Scores of extremes: the CRPS weighted by the extreme forecast index, the index itself, and the shift of tails."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from data_pipeline.statistics.efi import index_of_shares
from evaluation.scores.binned_probability import share_from
from evaluation.scores.case import Case
from evaluation.scores.ratios import divide
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
"""Bins of the index between -1 and 1, and of the shift of tails between -10 and 10."""
LARGEST_SHIFT = 10.0
INDEX_LEVELS = np.sin(np.linspace(0, np.pi / 2, 61)) ** 2
"""Levels of the climate's quantiles: p = sin² a at equal steps of a. All levels have nearly the same weight."""
_OUTERMOST = 1e-6


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
    quantiles = climate.quantile(torch.from_numpy(INDEX_LEVELS).clamp(_OUTERMOST, 1 - _OUTERMOST).to(climate.mean))
    lowest = torch.full_like(quantiles[0], -torch.inf)
    below = [forecast.cdf(torch.nextafter(quantile, lowest)).double() for quantile in quantiles]
    equal = (forecast.cdf(quantile) - low for quantile, low in zip(quantiles, below, strict=True))
    index: Tensor = index_of_shares(below, equal, (quantiles > eps).double(), INDEX_LEVELS)
    return index.to(forecast.mean)


def shift_of_tails(forecast: Distribution, climate: Distribution, inner: float, outer: float) -> Tensor:
    """Return (Q(inner) - C(outer))/(C(outer) - C(inner)), with quantiles Q of the forecast and C of the climate, (*S).

    For the upper tail, with 0.9 and 0.99, it is positive if a tenth of the probability lies beyond the 99th percentile
    of the climate (Zsótér 2006). With 0.1 and 0.01, it is the same for the lower tail. NaN where both quantiles of the
    climate are equal, such as 0 mm of rain.
    """
    near, far = (climate_quantile(climate, level) for level in (inner, outer))
    distance = far - near
    level = torch.tensor([inner], dtype=far.dtype, device=far.device)
    return (forecast.quantile(level)[0] - far) / torch.where(distance == 0, torch.nan, distance)


def _index(case: Case) -> Tensor:
    assert case.climate is not None
    return index_of(case.forecast, case.climate, case.eps)


def _absolute(case: Case) -> Tensor:
    return case.once(_index).abs().masked_fill(case.once(_no_climate), 0)


def _no_climate(case: Case) -> Tensor:
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
    return _in_bins(torch.stack([1 - position, position]), events, torch.stack([case.once(_no_climate)] * len(TAILS)))


def _by_shift(case: Case) -> Binned:
    assert case.climate is not None
    shifts = torch.stack([shift_of_tails(case.forecast, case.climate, *tail[1:]) for tail in TAILS.values()])
    events = torch.stack([_beyond(case, tail[0], sign) for tail, sign in zip(TAILS.values(), (-1, 1), strict=True)])
    # NaN where the climate has no tail, such as 0 mm of rain at both percentiles: the same cells for all models.
    return _in_bins((shifts.nan_to_num(0) / LARGEST_SHIFT + 1) / 2, events, shifts.isnan())


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


def _tails(settings: Settings, target: int) -> tuple[str, ...]:
    return tuple(TAILS)


KNOWN = CellStatistic(_known)
EECRPS_PLAIN = Score(
    name="eecrps",
    title="EECRPS",
    text="Mean of |EFI| · CRPS over the cells in which the extreme forecast index (EFI) of the raw ensemble is known: "
    "the same weights for all models, and little weight where the ensemble is near its climate. Not divided by the "
    "mean of |EFI|, so only values with the same climate and the same form of the EFI can be compared.",
    reference=EECRPS_REFERENCE,
    statistics={"eecrps": CellStatistic(lambda case: _weighted(case, case.crps)), "efi_known": KNOWN},
    value=lambda eecrps, efi_known: divide(eecrps, efi_known),
    best="low",
    missing=no_extremeness,
)
EECRPS_FAIR = Score(
    name="eecrps_fair",
    title="fair EECRPS",
    text="The EECRPS with the fair CRPS in place of the CRPS.",
    reference=EECRPS_REFERENCE + "; Ferro 2014, doi:10.1002/qj.2270",
    statistics={"eecrps_fair": CellStatistic(lambda case: _weighted(case, case.crps_fair)), "efi_known": KNOWN},
    value=lambda eecrps_fair, efi_known: divide(eecrps_fair, efi_known),
    best="low",
    missing=no_extremeness,
)
MEAN_INDEX = Score(
    name="efi",
    title="mean |EFI|",
    text="Mean absolute extreme forecast index of the model's own forecast, with the climatology as climate: how "
    "often and how far a forecast departs from it.",
    reference=EFI_REFERENCE,
    statistics={
        "efi_absolute": CellStatistic(_absolute),
        "climate_known": CellStatistic(lambda case: (~case.once(_no_climate)).to(case.truth)),
    },
    value=lambda efi_absolute, climate_known: divide(efi_absolute, climate_known),
    best=None,
    units="",
    missing=no_climatology,
)
INDEX_AREA = Score(
    name="efi_roc_area",
    title="ROC area of the EFI",
    text="The chance that the extreme forecast index of the model was more extreme in a case beyond the 5th or 95th "
    "percentile of the climatology than in another case, from 100 bins.",
    reference=EFI_REFERENCE,
    statistics={"efi_bins": CellStatistic(_by_index, size=lambda settings: 2 * len(TAILS) * INDEX_BINS)},
    value=lambda efi_bins: _area(efi_bins),
    best="one",
    units="",
    labels=_tails,
    missing=no_climatology,
)
SHIFT_AREA = Score(
    name="sot_roc_area",
    title="ROC area of the shift of tails",
    text="The same chance for the shift of tails (SOT): the forecast's 90th percentile minus the climatology's 99th, "
    "divided by the difference of the climatology's 99th and 90th; for the lower tail the 10th and the 1st. From 100 "
    "bins between −10 and 10.",
    reference=SOT_REFERENCE,
    statistics={"sot_bins": CellStatistic(_by_shift, size=lambda settings: 2 * len(TAILS) * INDEX_BINS)},
    value=lambda sot_bins: _area(sot_bins),
    best="one",
    units="",
    labels=_tails,
    missing=no_climatology,
)
SCORES = (EECRPS_PLAIN, EECRPS_FAIR, MEAN_INDEX, INDEX_AREA, SHIFT_AREA)
