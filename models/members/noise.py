"""Noise-driven members: a template of noise with the dependence of a corrector's errors, and of the raw members' ranks.

The error of a forecast in a cell is the normal score Φ⁻¹(F(y)) of the analysis y in the corrected distribution F. A
member has the template

    z = √(1 − w²) Σᵢ ξᵢ eᵢ / √n + w Φ⁻¹((rank of the raw member − 1/2) / M)

with the errors eᵢ of n starts of the training and standard normal ξᵢ, which are the same in all cells, lead times and
targets of a start. So members hang together as the errors did, in space, in time and between targets (the Gaussian
copula of Möller, Lenkoski & Thorarinsdottir 2013, doi:10.1002/qj.2009, of errors in place of analyses). The weight w of
the raw ranks is chosen in validation (`training.noise_fit`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from data_pipeline.task import Variable
from models.members.coupled_members import CellNames, template_order
from models.members.named_draws import normal_draws
from models.provenance.noise import ERROR_STEPS, Noise


def noise_template(
    noise: Noise, raw: np.ndarray, targets: Sequence[Variable], names: CellNames, count: int
) -> np.ndarray:
    """Return the template (count, T, h, w) of a forecast with the raw members (M, T, h, w)."""
    weight = noise.as_many if count <= len(raw) else noise.more
    shape = count, len(targets), *names.domain.own_shape
    template = np.zeros(shape)
    if weight < 1:
        for t, target in enumerate(targets):
            row = noise.fields.index((str(target), names.lead_time))
            drawn = draw_noise(noise, names.domain.cut(noise.errors[:, row]), names, count)
            template[:, t] = math.sqrt(1 - weight**2) * drawn
    if weight:
        template += weight * rank_scores(raw, names)[np.arange(count) % len(raw)].reshape(shape)
    return template


def draw_noise(noise: Noise, errors: np.ndarray, names: CellNames, count: int) -> np.ndarray:
    """Return Σᵢ ξᵢ eᵢ / √n of errors (n, ...) for each member, (count, ...)."""
    drawn = normal_draws(names.seed, (names.init_time, np.array(noise.starts), np.arange(count)[:, None]))
    scaled = (drawn / (ERROR_STEPS * math.sqrt(len(errors)))).astype(np.float32)
    found: np.ndarray = scaled @ errors.reshape(len(errors), -1).astype(np.float32)
    return found.reshape(count, *errors.shape[1:])


def rank_scores(raw: np.ndarray, names: CellNames) -> np.ndarray:
    """Return the normal scores Φ⁻¹((rank − 1/2) / M) of raw members (M, T, h, w) in each cell."""
    order = template_order(raw, names)
    M, ranks = len(raw), np.empty(order.shape, order.dtype)
    np.put_along_axis(ranks, order.astype(np.intp), np.arange(M, dtype=order.dtype), -1)
    of_ranks = np.array([NormalDist().inv_cdf((k + 0.5) / M) for k in range(M)])
    return of_ranks[np.moveaxis(ranks, -1, 0)].reshape(raw.shape)
