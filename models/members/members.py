"""From a predictive distribution to corrected members, by one of `MEMBER_METHODS`.

Most methods give the quantiles of the distribution at equidistant levels to the members in the rank order of a template
(`models.members.methods`): the raw members with `ecc-q`. Other values have

- `ecc-r`: quantiles at random levels. The levels are the same in all cells, lead times and targets of a start, so that
  members stay as smooth as the raw ones.
- `ecc-t`: quantiles at the levels of the raw members in a normal distribution with their mean and spread, so that
  distances between members are kept, too (Schefzik, Thorarinsdottir & Gneiting 2013, doi:10.1214/13-STS443). Equal
  members, such as dry ones, take the levels (k - 1/2)/M of their ranks.
- `member-by-member`: raw members, shifted and scaled to mean and spread of the distribution (Van Schaeybroeck &
  Vannitsem 2015, doi:10.1002/qj.2397). Equal members stay equal.
- `quantiles`: without an order; the first member is the lowest everywhere.

All members lie within the physical bounds of their variable. Where a raw member of a target is missing, the output is
the raw members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.protocols import Fields
from data_pipeline.task import Variable
from models.engines.engine import Prediction
from models.engines.forecast import RawForecast
from models.members.coupled_members import CellNames, couple, template_order
from models.members.member_order import CELLS_SORTED_TOGETHER
from models.members.methods import METHODS, Situation
from models.members.named_draws import uniform_draws
from models.members.options import QUANTILE_LEVELS, CorrectionOptions
from models.members.past import Past
from models.parallel.domain import Domain
from models.provenance.noise import Noise

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
    past: Past | None = None,
    current: Fields | None = None,
    change: Callable[[int], np.ndarray] | None = None,
    noise: Noise | None = None,
) -> np.ndarray:
    """Return the corrected members (`member_count`, T, h, w) of a forecast on this rank's tile.

    `mask` (T, h, w) is True where all raw members of a target have a value. The methods that read them need the `past`,
    the raw members of all forecasts of the input (`current`), `change`, and `noise`, as in `methods.Situation`.
    """
    count, method = options.member_count or len(forecast.raw), METHODS[options.members]
    names = CellNames(options.seed, _seconds(forecast.init_time), forecast.lead_time, domain)
    template, kept = forecast.raw[:count], prediction.unchanged
    if method.values == "shifted":
        if count > len(template):
            raise InputError(
                f"member_count={count}: members=member-by-member shifts and scales the {len(template)} raw members, "
                "so it cannot make more; choose another method"
            )
        members = _shifted_and_scaled(prediction, template)
        if kept is not None:
            members = np.where(kept, template, members)
    else:
        raw_values = order = None
        if method.template == "raw" or method.values == "raw levels" or kept is not None:
            order = template_order(template, names, count)
        if order is not None and (method.values == "raw levels" or kept is not None):
            raw_values = _in_order(template, order)
        members = _values(prediction, raw_values, count, options, names)
        if kept is not None and raw_values is not None:
            members = np.where(kept, raw_values, members)
        if callable(method.template):
            own = method.template(Situation(forecast, names, count, past, current, noise, targets, change))
            found = template_order(own, names, count)
            # In cells that keep the raw members, these remain in their own order.
            order = found if order is None or kept is None else np.where(kept.reshape(len(kept), -1, 1), order, found)
        if method.template is not None:
            assert order is not None
            members = couple(members, order)
    clip_to_bounds(members, targets)
    if not mask.all():
        members = np.where(mask, members, template[np.arange(count) % len(template)])
    return members


def change_of_ecc_q(
    prediction: Prediction,
    forecast: RawForecast,
    targets: tuple[Variable, ...],
    mask: np.ndarray,
    domain: Domain,
    options: CorrectionOptions,
) -> np.ndarray:
    """Return what `ecc-q` adds to the raw members that `options` use, (M, T, h, w)."""
    count = min(options.member_count or len(forecast.raw), len(forecast.raw))
    ecc_q = replace(options, members="ecc-q", member_count=count, history=(), reforecasts=())
    return corrected_members(prediction, forecast, targets, mask, domain, ecc_q) - forecast.raw[:count]


def _seconds(time: np.datetime64) -> int:
    """Return the seconds since 1970."""
    return int(time.astype("datetime64[s]").astype(np.int64))


def clip_to_bounds(fields: np.ndarray, targets: tuple[Variable, ...]) -> None:
    """Bring the fields (K, T, h, w) into the physical bounds of their targets, in place."""
    for t, target in enumerate(targets):
        if target.bounds != (None, None):
            np.clip(fields[:, t], *target.bounds, out=fields[:, t])


def _values(
    prediction: Prediction, raw: np.ndarray | None, M: int, options: CorrectionOptions, names: CellNames
) -> np.ndarray:
    """Return the values of M members from lowest to highest, (M, T, h, w); `raw` has the sorted raw members."""
    if METHODS[options.members].values == "raw levels":
        assert raw is not None
        return _values_at_deviations(prediction, raw)
    if METHODS[options.members].values == "random levels":
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
