"""The single forecasts that the report shows: best, median and worst gain over raw; and the choices of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.sample import Sample
from evaluation.report.shown_data import PLUME_LEVELS, ExampleForecast, ExpertMap, Plume
from evaluation.scoring.scoreboard import Scoreboard
from evaluation.scoring.scoring import Forecaster, Forecasts
from models.device import copy_batch
from models.layers.mixture import SpatialBlend, SpatialMixture
from models.parallel.domain import Domain
from models.parallel.exchange import allsum, assemble

MOST_LEADS = 12
"""Most lead times of a plume, because each of them is one more forecast to read and correct."""


def chosen_forecasts(board: Scoreboard, target: int, best: str, lead: int) -> dict[str, tuple[int, float]]:
    """Return the forecasts with the best, median and worst gain of `best` over raw, without repeats.

    Gains are differences of the fair CRPS where it is valid, else of the plain CRPS. There is always a median. Each
    forecast has its row and its gain relative to raw in per cent.
    """
    rows, everywhere = np.flatnonzero(board.lead_times == lead), list(board.regions).index("global")
    score = board.judging_score(best)
    raw, model = (board.tallies[name].per_forecast[score][rows, target, everywhere].value for name in ("raw", best))
    order = np.argsort(raw - model)  # NaN, of forecasts without score, comes last
    known = int(np.isfinite(raw - model).sum())
    median = int(order[(known - 1) // 2])
    found = {"best": int(order[known - 1]), "median": median, "worst": int(order[0])}
    gains = 100 * (raw - model) / np.where(raw > 0, raw, np.nan)
    return {name: (int(rows[k]), float(gains[k])) for name, k in found.items() if name == "median" or k != median}


@torch.no_grad()
def show_forecast(
    board: Scoreboard,
    forecasts: Forecasts,
    row: int,
    target: int,
    raw: Forecaster,
    model: Forecaster,
    domain: Domain,
    device: torch.device | str = "cpu",
    gain: float = float("nan"),
) -> ExampleForecast:
    """Return one forecast before and after its correction, on the whole grid, with plumes of its start.

    All ranks of the domain must call this; `forecasts` are on the rank's tile.
    """
    batch = _batch(forecasts, row, device)
    before, after = raw(batch), model(batch)
    crps = [forecast.crps(batch.target, fair=True) for forecast in (before, after)]
    parts = (batch.target, before.mean, after.mean, after.std, *crps)
    fields = assemble(torch.stack([part[0, target].float() for part in parts]).cpu(), domain).numpy()
    cells = chosen_cells(fields[4] - fields[5])
    start, lead = int(board.init_times[row]), int(board.lead_times[row])
    rows = _rows_of_start(board, start, row)
    values = []
    for one in rows:
        sample = batch if one == row else _batch(forecasts, one, device)
        corrected = after if one == row else model(sample)
        members = sample.ensemble[0, :, forecasts.task.target_channels[target]]
        quantiles = corrected.quantile(torch.tensor(PLUME_LEVELS, device=members.device))[:, 0, target]
        together = torch.cat([members, quantiles.to(members), sample.target[0, target][None]])
        values.append(_at_cells(together.cpu(), list(cells.values()), domain, board.grid.shape))
    every = np.stack(values)  # (leads, members + levels + 1, cells)
    M, leads = every.shape[1] - len(PLUME_LEVELS) - 1, board.lead_times[rows]
    plumes = tuple(
        Plume(choice, cell, leads, every[:, :M, k], every[:, M:-1, k], every[:, -1, k])
        for k, (choice, cell) in enumerate(cells.items())
    )
    truth, raw_mean, mean, std, *_ = fields
    return ExampleForecast(start, lead, truth, raw_mean, mean, std, plumes, gain)


def chosen_cells(gain: np.ndarray) -> dict[str, tuple[int, int]]:
    """Return the cells of a field (H, W) with the largest, the median and the lowest gain, without repeats."""
    flat = gain.ravel()
    order = np.argsort(flat)
    known = int(np.isfinite(flat).sum())
    if not known:
        return {}
    found = {"largest gain": order[known - 1], "median gain": order[(known - 1) // 2], "lowest gain": order[0]}
    kept: dict[str, tuple[int, int]] = {}
    for name, index in found.items():
        row, column = (int(k) for k in np.unravel_index(int(index), gain.shape))
        if (row, column) not in kept.values():
            kept[name] = (row, column)
    return kept


@torch.no_grad()
def show_experts(
    network: nn.Module, forecasts: Forecasts, row: int, model: Forecaster, domain: Domain, device: torch.device | str
) -> ExpertMap | None:
    """Return the first choice of the last mixture of experts on the whole grid; None if `network` has none."""
    here = tuple(forecasts.grid.shape) if domain.ranks == 1 else tuple(torch.empty(domain.shape)[domain.tile].shape)
    found = first_choices(network, lambda: model(_batch(forecasts, row, device)), here)
    if found is None:
        return None
    chosen = assemble(torch.from_numpy(found.chosen)[None], domain)[0]
    return replace(found, chosen=chosen.numpy())


def _rows_of_start(board: Scoreboard, start: int, row: int) -> np.ndarray:
    """Return the rows of a start by lead time: at most `MOST_LEADS` evenly spaced ones, and `row`."""
    rows = np.flatnonzero(board.init_times == start)
    rows = rows[np.argsort(board.lead_times[rows])]
    if len(rows) > MOST_LEADS:
        kept = np.round(np.linspace(0, len(rows) - 1, MOST_LEADS)).astype(int)
        rows = rows[np.unique([*kept, *np.flatnonzero(rows == row)])]
    return rows


def _batch(forecasts: Forecasts, row: int, device: torch.device | str) -> Sample:
    return copy_batch(Sample(*(tensor[None] for tensor in forecasts[row])), device)


def _at_cells(values: Tensor, cells: list[tuple[int, int]], domain: Domain, shape: tuple[int, int]) -> np.ndarray:
    """Return the values of tiles (K, h, w) at cells of the whole grid, (K, cells), on all ranks."""
    if domain.ranks == 1:
        return np.stack([values[:, row, column].numpy() for row, column in cells], 1)
    numbers = domain.cut(torch.arange(shape[0] * shape[1]).view(shape))
    found = torch.zeros(len(values), len(cells), dtype=values.dtype)
    for k, (row, column) in enumerate(cells):
        mine = numbers == row * shape[1] + column
        if mine.any():
            found[:, k] = values[:, mine][:, 0]
    return allsum(found, domain).numpy()


def first_choices(network: nn.Module, forward: Callable[[], object], shape: tuple[int, ...]) -> ExpertMap | None:
    """Return the first choice of the last mixture of experts in all cells; None if `network` has none.

    `forward` runs the network once, on fields of `shape` (H, W); mixtures on other grids inside the network are left
    out.
    """
    mixtures: dict[str, SpatialMixture | SpatialBlend] = {
        name: layer for name, layer in network.named_modules() if isinstance(layer, SpatialMixture | SpatialBlend)
    }
    if not mixtures:
        return None
    with _gates(mixtures) as found:
        forward()
    whole = {name: gate for name, gate in found.items() if tuple(gate.shape[-2:]) == shape}
    if not whole:
        return None
    name, gate = list(whole.items())[-1]
    return ExpertMap(name or "the network", gate.shape[1], gate[0].argmax(0).float().cpu().numpy())


@contextmanager
def _gates(mixtures: Mapping[str, SpatialMixture | SpatialBlend]) -> Iterator[dict[str, Tensor]]:
    """Collect the outputs (B or 1, E, H, W) of the gates of mixtures, in the order of the forward pass."""
    found: dict[str, Tensor] = {}

    def keeper(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _module, _inputs, output: found.__setitem__(name, output)

    hooks = [layer.gate.register_forward_hook(keeper(name)) for name, layer in mixtures.items()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
