"""`add_noise`: give a trained corrector the noise from which `members=noise` draws.

The noise has the errors of the corrector in starts of the training. The weight of the raw members' ranks is chosen in
validation by the energy score plus the variogram score of the members that `correct` would make, in normal scores, over
vectors: values of neighbouring cells at all lead times and of all targets. For as many members as the raw ensemble has,
it is 1, or 0 if noise is better by more than two standard errors over starts; for `MORE` times as many, it is the best
of `WEIGHTS`. Margins stay those of the corrector.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from data_pipeline.common.checks import check_boolean
from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say
from data_pipeline.common.progress import watched
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import unit_vectors
from data_pipeline.sample import Sample, select_channels, verifiable
from data_pipeline.split import Split
from models.corrector import Corrector
from models.device import copy_batch
from models.distribution import energy_score, variogram_score
from models.members.coupled_members import CellNames
from models.members.noise import draw_noise, rank_scores
from models.parallel.domain import Domain
from models.provenance.noise import ERROR_STEPS, Noise
from models.provenance.training_dates import state_fits, valid_days
from training.training_run import TrainingPlan

ERRORS, FEWEST, ERROR_BYTES = 128, 20, 2**28
"""Starts of the training whose errors are kept, at most and at least, and their bytes, unless `FEWEST` need more."""
NO_ANALYSIS = -128
"""An error without analysis, until the mean is subtracted."""
CHOOSING_STARTS = 32
"""Starts that choose the weight, at most."""
WEIGHTS, MORE = (0.0, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0), 5
"""Weights of the raw ranks among which is chosen, and how many times as many members as the raw ensemble has."""
GROUPS, VALUES, EXTENT = 100, 32, 64
"""Vectors of a start, values of each, and among how many nearest cells those are."""


def add_noise(corrector: Corrector, plan: TrainingPlan) -> None:
    """Give a trained corrector its noise, and state its dates in the provenance."""
    task = corrector.task
    train, val = (
        ForecastDataset(
            plan.sources[name], task, plan.split.dates(name, task.lead_times), members=plan.members
        ).with_all_groups()
        for name in ("train", "val")
    )
    corrector.noise = fit_noise(corrector, train, val, plan.options.seed)
    times = (torch.cat(both) for both in zip(train.times(), val.times(), strict=True))
    state_fits(corrector.provenance, {"noise": valid_days(*times)})


def check_noise(noise: object, split: Split) -> None:
    """Raise `InputError` for an invalid option `noise`, or if there are no validation dates."""
    check_boolean("noise", noise)
    if noise and not split.validates:
        raise InputError("noise=true needs validation dates; give them as data.split.val=[first, last]")


def fit_noise(corrector: Corrector, train: ForecastDataset, val: ForecastDataset, seed: int = 0) -> Noise:
    """Return the noise of a corrector on the whole grid. Raises `InputError` for a corrector of members."""
    fields = tuple((str(target), lead) for lead in train.task.lead_times for target in train.task.targets)
    shape = len(fields), *corrector.grid.shape
    starts = starts_with_all_leads(train, min(ERRORS, max(FEWEST, ERROR_BYTES // math.prod(shape))))
    chosen = starts_with_all_leads(val, CHOOSING_STARTS)
    if len(starts) < FEWEST or not len(chosen):
        raise InputError(
            f"noise=true needs {FEWEST} starts with all lead times in the training years and one in the validation "
            f"years, and there are {len(starts)} and {len(chosen)}; add years, or set noise=false"
        )
    stored, times = np.empty((len(starts), *shape), np.int8), []
    for error, rows in zip(stored, watched(starts, "noise: error of start"), strict=True):
        samples = [train[int(row)] for row in rows]
        error[:] = np.nan_to_num(np.rint(ERROR_STEPS * _normal_scores(corrector, samples)), nan=NO_ANALYSIS)
        times.append(int(samples[0].init_time))
    known = (stored != NO_ANALYSIS).sum(0)
    mean = np.rint(stored.sum(0, where=stored != NO_ANALYSIS) / np.maximum(known, 1))
    for error in stored:
        error[:] = np.where(error == NO_ANALYSIS, 0, (error - mean).clip(-127, 127))
    noise = Noise(stored, fields, tuple(times), 1.0, 1.0)
    M = val.members
    found = []
    for rows in watched(chosen, "noise: choice of the weight, start"):
        samples = [val[int(row)] for row in rows]
        truth, ranks = _normal_scores(corrector, samples), _ranks(corrector, samples)
        names = CellNames(seed, int(samples[0].init_time), 0, corrector.domain)
        found.append(_scores(noise, truth, ranks, names, (M, MORE * M)))
    scores, gain = np.mean(found, 0), np.array([each[0, -1] - each[0, 0] for each in found])
    clear = len(gain) > 1 and gain.mean() > 2 * gain.std(ddof=1) / math.sqrt(len(gain))
    # Copies of raw members differ by their noise only, so that its weight is never 0.
    as_many, more = float(not clear), WEIGHTS[int(scores[1, :-1].argmin())]
    gains = (100 * (row[WEIGHTS.index(own)] / row[-1] - 1) for row, own in zip(scores, (as_many, more), strict=True))
    say(
        f"noise: errors of {len(starts)} starts; the raw ranks have the weight {as_many:g} in up to {M} members and "
        f"{more:g} in more; scores less those of the raw ranks alone: {' and '.join(f'{one:+.1f} %' for one in gains)}"
    )
    return Noise(stored, fields, tuple(times), as_many, more)


def _scores(
    noise: Noise, truth: np.ndarray, ranks: np.ndarray, names: CellNames, counts: tuple[int, ...]
) -> np.ndarray:
    """Return the scores (counts, WEIGHTS) of a start with the truth (K, H, W) and the raw rank scores (M, K, H, W)."""
    rng = np.random.default_rng([names.seed, names.init_time])
    places, distances = _vectors(names.domain, truth, rng)
    y, found = torch.from_numpy(truth.reshape(-1)[places]), np.empty((len(counts), len(WEIGHTS)))
    errors, raw = (one.reshape(len(one), -1)[:, places] for one in (noise.errors, ranks))
    near = 1 / (distances + (distances.mean() / 10).clamp(min=1e-6))
    weights = near / near.sum((1, 2), keepdim=True)
    for k, count in enumerate(counts):
        drawn = draw_noise(noise, errors, names, count)
        levels = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
        for j, weight in enumerate(WEIGHTS):
            own = max((1 - weight**2) ** 0.5, 1e-3) * drawn + weight * raw[np.arange(count) % len(raw)]
            x = levels[torch.from_numpy(own.argsort(0).argsort(0))]
            found[k, j] = float((energy_score(x, y, 1) / VALUES**0.5 + variogram_score(x, y, weights)).mean())
    return found


def _vectors(domain: Domain, truth: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, Tensor]:
    """Choose vectors with a truth: positions (P, VALUES) in the flattened truth, and distances (P, VALUES, VALUES)."""
    grid, flat = domain.grid, truth.reshape(len(truth), -1)
    where = np.flatnonzero(np.isfinite(flat).all(0))
    if not len(where):
        raise InputError("noise=true: a start of the validation has no cell with analyses at all lead times")
    sides = (np.broadcast_to(one, grid.shape).ravel() for one in (grid.cell_latitudes, grid.cell_longitudes))
    points = unit_vectors(*sides)
    area = np.broadcast_to(grid.weights[:, None], grid.shape).ravel()[where]
    centres = where[rng.choice(len(where), GROUPS, p=area / area.sum())]
    near = KDTree(points[where]).query(points[centres], min(EXTENT, len(where)))[1].reshape(GROUPS, -1)
    near = np.take_along_axis(near, rng.integers(near.shape[1], size=(GROUPS, VALUES)), 1)
    cells = where[near]
    fields = rng.integers(len(truth), size=cells.shape)
    at = points[cells]
    apart = torch.from_numpy(np.linalg.norm(at[:, :, None] - at[:, None], axis=-1))
    return fields * flat.shape[1] + cells, apart


def starts_with_all_leads(forecasts: ForecastDataset, count: int) -> np.ndarray:
    """Return the rows (N, L) of at most `count` starts with all lead times of the task, evenly in time."""
    starts, leads = (one.numpy() for one in forecasts.times())
    order, L = np.lexsort((leads, starts)), len(forecasts.task.lead_times)
    _, first, found = np.unique(starts[order], return_index=True, return_counts=True)
    first = first[found == L]
    kept = np.unique(np.linspace(0, len(first) - 1, min(count, len(first))).round().astype(int))
    return order[first[kept][:, None] + np.arange(L)]


@torch.no_grad()
def _normal_scores(corrector: Corrector, samples: list[Sample]) -> np.ndarray:
    """Return Φ⁻¹(F) of the analyses (K, H, W) of a start, within ±5."""
    device, found = next(iter(corrector.state_dict().values())).device, []
    for sample in samples:
        batch = copy_batch(Sample(*(one[None] for one in sample)), device)
        distribution = corrector(batch)
        if distribution.core.as_members is not None:
            raise InputError(
                "noise=true is for models with a distribution in each cell, and this one corrects members, which have "
                "a dependence of their own; set noise=false"
            )
        level = distribution.cdf(verifiable(batch, corrector.task.target_channels))[0].double()
        found.append(torch.special.ndtri(level).clamp(-5, 5).cpu().numpy())
    return np.concatenate(found)


def _ranks(corrector: Corrector, samples: list[Sample]) -> np.ndarray:
    """Return the rank scores (M, K, H, W) of the raw members of a start."""
    found = []
    for sample in samples:
        raw = select_channels(sample.ensemble, corrector.task.target_channels, 1).double().numpy()
        found.append(rank_scores(raw, CellNames(0, int(sample.init_time), int(sample.lead_time), corrector.domain)))
    return np.concatenate(found, 1)
