"""Forecasts on which an exported model is compared with PyTorch: noise, and smooth fields with gaps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from data_pipeline.common.progress import Progress
from data_pipeline.sample import Sample
from models.corrector import Corrector
from models.protocol import claims

_STARTS = (951782400, 1594771200)
"""29 February 2000 and 15 July 2020, 00 UTC."""
_WAVES = 4


def check_inputs(corrector: Corrector, counts: Sequence[int]) -> Iterator[Sample]:
    """Yield a random and a realistic forecast, as batches of one, for each number in `counts`, start and lead time.

    Random: independent noise in every cell, as large as the normaliser's departures. Realistic: waves of a few thousand
    kilometres that members share, smaller waves of each member, and a tenth of the cells without values.
    """
    task, grid = corrector.task, corrector.grid
    draw = torch.Generator().manual_seed(0)
    location, scale = _climate(corrector)
    lower, upper = (_bounds(corrector, side) for side in (0, 1))
    leads = dict.fromkeys((task.lead_times[0], task.lead_times[-1]))
    kinds = [(s, h, real) for s in _STARTS for h in leads for real in (False, True)]
    with Progress("comparison with PyTorch: forecast", len(counts) * len(kinds)) as progress:
        for count, (start, lead, realistic) in product(counts, kinds):
            shape = count, len(location), *grid.shape
            if realistic:
                departure = _waves((1, *shape[1:]), draw) + 0.3 * _waves(shape, draw)
            else:
                departure = torch.randn(shape, generator=draw)
            ensemble = torch.minimum(torch.maximum(location + scale * departure, lower), upper)
            mask = torch.ones(shape[1:], dtype=torch.bool)
            if realistic:
                mask = torch.rand(shape[1:], generator=draw) > 0.1
                ensemble = torch.where(mask, ensemble, torch.nan)
            yield Sample(
                ensemble[None], mask[None], corrector.static[None],
                torch.full((1, len(task.targets), *grid.shape), torch.nan),
                torch.tensor([start]), torch.tensor([lead]),
            )  # fmt: skip
            progress.step()


def _climate(corrector: Corrector) -> tuple[Tensor, Tensor]:
    """Return mean (C, H, W) and departure (C, 1, 1) of the inputs; without a normaliser, those of a unit variable."""
    parts = [part for part in corrector.modules() if isinstance(part, Corrector)]
    used = next((part for part in parts if not claims(part.model).physical), corrector)
    return used.normalizer.location, used.normalizer.scale[:, None, None]


def _bounds(corrector: Corrector, side: int) -> Tensor:
    missing = (-math.inf, math.inf)[side]
    limits = [channel.variable.bounds[side] for channel in corrector.task.channels]
    return torch.tensor([missing if limit is None else limit for limit in limits])[:, None, None]


def _waves(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    """Return smooth fields (M, C, H, W) of standard deviation 1."""
    *outer, H, W = shape
    rows, columns = torch.arange(H) / H, torch.arange(W) / W
    total = torch.zeros(shape)
    for wave in range(1, _WAVES + 1):
        phase = 2 * math.pi * torch.rand((2, *outer, 1, 1), generator=draw)
        along = torch.cos(2 * math.pi * wave * columns + phase[0])
        total += along * torch.cos(math.pi * wave * rows[:, None] + phase[1])
    return total * (2 / math.sqrt(_WAVES))
