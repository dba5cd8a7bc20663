"""From a predictive distribution to corrected members, by one of `MEMBER_METHODS`.

- `ecc-q`: quantiles of the distribution at equidistant levels, in the rank order of the raw members.
- `ecc-r`: quantiles at random levels, in the same order. The levels are the same in all cells, lead times and targets
  of a start, so that members stay as smooth as the raw ones.
- `ecc-t`: quantiles at the levels of the raw members in a normal distribution with their mean and spread, so that
  distances between members are kept, too (Schefzik, Thorarinsdottir & Gneiting 2013, doi:10.1214/13-STS443). Equal
  members, such as dry ones, take the levels (k - 1/2)/M of their ranks.
- `schaake`: the quantiles of `ecc-q` in the rank order of past analyses (`models.members.past_analyses`).
- `member-by-member`: raw members, shifted and scaled to mean and spread of the distribution (Van Schaeybroeck &
  Vannitsem 2015, doi:10.1002/qj.2397). Equal members stay equal.
- `quantiles`: the quantiles of `ecc-q` without an order of the raw members: the first member is the lowest everywhere.

All members lie within the physical bounds of their variable. Where a raw member of a target is missing, the output is
the raw members.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.task import Variable
from models.engines.engine import Prediction
from models.engines.forecast import RawForecast
from models.members.coupled_members import CellNames, couple, template_order
from models.members.member_order import CELLS_SORTED_TOGETHER
from models.members.named_draws import uniform_draws
from models.members.options import QUANTILE_LEVELS, CorrectionOptions
from models.members.past_analyses import PastAnalyses
from models.parallel.domain import Domain

DEVIATIONS = np.linspace(-5, 5, 41)
"""Standard deviations at whose levels `ecc-t` computes quantiles; it interpolates linearly between them. This is exact
for normal distributions. Members beyond ±5 get the first or the last value."""


def member_numbers(numbers: tuple[int, ...], count: int | None) -> tuple[int, ...]:
    """Return the numbers of `count` members: the first numbers of the forecast, continued after the highest.

    >>> member_numbers((0, 1, 2), 5)
    (0, 1, 2, 3, 4)
    """
    count = len(numbers) if count is None else count
    return (*numbers[:count], *range(max(numbers) + 1, max(numbers) + 1 + count - len(numbers)))


def corrected_members(
    prediction: Prediction,
    forecast: RawForecast,
    targets: tuple[Variable, ...],
    mask: np.ndarray,
    domain: Domain,
    options: CorrectionOptions,
    history: PastAnalyses | None = None,
) -> np.ndarray:
    """Return the corrected members (`member_count`, T, h, w) of a forecast on this rank's tile.

    `mask` (T, h, w) is True where all raw members of a target have a value. `history` is the template of `schaake`.
    """
    count = options.member_count or len(forecast.raw)
    names = CellNames(options.seed, _seconds(forecast.init_time), forecast.lead_time, domain)
    template = forecast.raw[:count]
    if options.members == "member-by-member":
        if count > len(template):
            raise InputError(
                f"member_count={count}: members=member-by-member shifts and scales the {len(template)} raw members, "
                "so it cannot make more; choose another method"
            )
        members = _shifted_and_scaled(prediction, template)
        if prediction.unchanged is not None:
            members = np.where(prediction.unchanged, template, members)
    else:
        order = template_order(template, names, count)
        used = options.members == "ecc-t" or prediction.unchanged is not None or count != len(template)
        raw_values = _in_order(template, order) if used else template
        values = _values(prediction, raw_values, options, names)
        if prediction.unchanged is not None:
            values = np.where(prediction.unchanged, raw_values, values)
        if options.members == "schaake":
            assert history is not None
            past = template_order(history.template(forecast.init_time, forecast.lead_time, count, domain), names)
            # In cells that keep the raw members, these remain in their own order.
            kept = prediction.unchanged
            order = past if kept is None else np.where(kept.reshape(len(kept), -1, 1), order, past)
        members = values if options.members == "quantiles" else couple(values, order)
    clip_to_bounds(members, targets)
    if not mask.all():
        members = np.where(mask, members, template[np.arange(count) % len(template)])
    return members


def _seconds(time: np.datetime64) -> int:
    """Return the seconds since 1970."""
    return int(time.astype("datetime64[s]").astype(np.int64))


def clip_to_bounds(fields: np.ndarray, targets: tuple[Variable, ...]) -> None:
    """Bring the fields (K, T, h, w) into the physical bounds of their targets, in place."""
    for t, target in enumerate(targets):
        if target.bounds != (None, None):
            np.clip(fields[:, t], *target.bounds, out=fields[:, t])


def _values(prediction: Prediction, raw: np.ndarray, options: CorrectionOptions, names: CellNames) -> np.ndarray:
    """Return the values of the members from lowest to highest, (M, T, h, w); `raw` has the sorted raw members."""
    M = len(raw)
    if options.members == "ecc-t":
        return _values_at_deviations(prediction, raw)
    if options.members == "ecc-r":
        return prediction.quantiles(np.sort(uniform_draws(names.seed, (names.init_time, np.arange(M)))))
    if prediction.members is not None and len(prediction.members) == M:
        return np.sort(prediction.members, axis=0)
    return prediction.quantiles(QUANTILE_LEVELS[options.quantile_levels](np.arange(1, M + 1), M))


def _in_order(template: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the values of the template, or its copies, from the lowest to the highest, (M, T, h, w)."""
    M, T = template.shape[:2]
    flat, ordered = template.reshape(M, T, -1), np.empty((order.shape[2], T, order.shape[1]))
    for t in range(T):
        for first in range(0, flat.shape[2], CELLS_SORTED_TOGETHER):
            part = slice(first, first + CELLS_SORTED_TOGETHER)
            ordered[:, t, part] = np.take_along_axis(flat[:, t, part], order[t, part].T.astype(np.intp) % M, 0)
    return ordered.reshape(-1, *template.shape[1:])


def _values_at_deviations(prediction: Prediction, raw: np.ndarray) -> np.ndarray:
    """Return F⁻¹(Φ(z)) for the deviations z of the sorted raw members (M, T, h, w) from their mean."""
    M, normal = len(raw), NormalDist()
    table = prediction.quantiles(np.array([normal.cdf(z) for z in DEVIATIONS]))
    of_ranks = np.array([normal.inv_cdf((k - 0.5) / M) for k in range(1, M + 1)])
    values = np.empty(raw.shape)
    step = DEVIATIONS[1] - DEVIATIONS[0]
    flat, nodes, out = (array.reshape(len(array), -1) for array in (raw, table, values))
    for first in range(0, flat.shape[1], CELLS_SORTED_TOGETHER):
        part = slice(first, first + CELLS_SORTED_TOGETHER)
        own = flat[:, part]
        equal = np.zeros(own.shape, bool)
        equal[1:] = own[1:] == own[:-1]
        equal[:-1] |= equal[1:]
        spread = own.std(0, ddof=1) if M > 1 else np.zeros(own.shape[1])
        # Rounding can leave a spread above 0 for equal members; their deviations are not used.
        z = (own - own.mean(0)) / np.where(spread > 0, spread, 1)
        z = np.where(equal | (M == 1), of_ranks[:, None], z)
        z.sort(axis=0)
        place = np.clip((np.nan_to_num(z) - DEVIATIONS[0]) / step, 0, len(DEVIATIONS) - 1)
        below = np.minimum(place.astype(np.intp), len(DEVIATIONS) - 2)
        low = np.take_along_axis(nodes[:, part], below, 0)
        high = np.take_along_axis(nodes[:, part], below + 1, 0)
        out[:, part] = low + (place - below) * (high - low)
    return values


def _shifted_and_scaled(prediction: Prediction, raw: np.ndarray) -> np.ndarray:
    """Return the raw members (M, T, h, w) with mean and spread (divisor M - 1) of the distribution."""
    center, deviation = prediction.mean(), prediction.std()
    spread = raw.std(0, ddof=1) if len(raw) > 1 else np.zeros(raw.shape[1:])
    alike = (raw == raw[0]).all(0) | (spread == 0)
    scale = np.where(alike, 0, deviation / np.where(spread > 0, spread, 1))
    shifted: np.ndarray = center + scale * np.where(alike, 0, raw - raw.mean(0))
    return shifted
