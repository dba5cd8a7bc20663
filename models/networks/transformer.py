"""Transformer over members: members attend to one another in every cell, and convolutions connect the cells.

The Transformer of ENS-10 (Ashkboos et al. 2022, arXiv:2206.14786) is of this kind. Its sizes are not published; these
are ours. Finn (2021, arXiv:2106.13924) and PoET (`models.published.poet`) use one attention matrix for the field.
All members go through the same layers. Attention depends on neither the order nor the number of members.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_boolean, check_choice, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample, select_channels
from data_pipeline.task import Task
from models.distribution import Distribution, Ensemble
from models.layers.locally_connected import CellEmbedding
from models.networks.baseline import BaselineOption, ClimateBaseline, make_baseline
from models.networks.features import Features
from models.networks.head import HEADS, HeadOption, make_head, zero_convolution
from models.networks.mlp import hidden_layers, make_stem
from models.networks.trunk import Trunk
from models.parallel.domain import Domain
from models.statistical.predictors import SMALLEST_SPREAD, spread


class Transformer(nn.Module):
    """A U-Net on features that members share, then a narrower U-Net on every member with attention among the members.

    `head: members` returns as many members as came in: x + s o for the network's output o at member x, in units of
    the spread s. With the baseline `climate`, the members x have its mean and spread. Any other head gets the shared
    maps, and the mean and mean square of the members' last maps.

    `member_attention: false` corrects each member without the others: the network sees neither them nor their mean and
    spread, and s is the size of past errors. If the raw members are independent draws, given the state at the initial
    time, the members that `head: members` returns are independent too. Their expected fair CRPS (Ferro 2014,
    doi:10.1002/qj.2270) and ratio of spread to error then depend on the number of members no more than for the raw
    ensemble, whatever the number in training was. Train such a network with the fair score: the plain CRPS rewards
    members that are too close together.

    Members have `width` channels at the finest resolution, the shared maps twice as many. The resolution is halved
    `depth` times. Attention heads have `width` channels. `mixture`, `cell_embedding`, `stem_width` and `cell_width`
    are options of `UNet`, for the shared maps. With `head: members` the path of single cells moves all members alike.
    """

    any_grid = tiles = reads_memberships = True

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        head: HeadOption = "normal",
        baseline: BaselineOption = None,
        member_attention: bool = True,
        width: int = 8,
        depth: int = 2,
        cell_embedding: int = 0,
        dropout: float = 0.1,
        mixture: dict[str, Any] | None = None,
        stem_width: int = 0,
        cell_width: int = 0,
    ) -> None:
        super().__init__()
        check_integer("model.width", width, 1)
        check_integer("model.cell_width", cell_width, 0)
        if isinstance(head, str):
            check_choice("model.head", head, ("members", *HEADS))
        check_boolean("model.member_attention", member_attention)
        if head == "members" and baseline not in (None, "climate"):
            raise InputError(
                "model.head=members corrects members and cannot start at EMOS; set model.baseline to climate or null"
            )
        self._targets, self._attention = list(task.target_channels), member_attention
        learnt = cell_embedding if cell_width else 0
        self.features = Features(task, grid, learnt)
        # Without attention, drop mean and log spread of the inputs, the first features.
        inputs, self._moments = len(task.channels), 2 * self.features.inputs
        seen = self.features.parity[0 if member_attention else self._moments :]
        # The convolutions do not read the cell embedding.
        parity = seen[: len(seen) - learnt]
        self.stem = make_stem(len(parity), stem_width)
        options: dict[str, Any] = {"depth": depth, "dropout": dropout, "mixture": mixture, "recompute": True}
        self.shared = Trunk(grid, stem_width or len(parity), 2 * width, **options, parity=() if stem_width else parity)
        self._convolved = len(parity)
        place = cell_embedding and not cell_width
        self.place = CellEmbedding(grid, 2 * width, cell_embedding) if place else nn.Identity()
        self.cell = nn.Sequential(*hidden_layers(grid, len(seen), cell_width, 2)) if cell_width else None
        options |= {
            "member_attention": member_attention,
            "parity": (*task.parity, *[1] * 2 * width),
            "shared": 2 * width,
        }
        self.members = Trunk(grid, inputs + 2 * width, width, **options)
        self.head = None if head == "members" else make_head(head, task, grid, baseline)
        self.start = make_baseline(baseline, task, grid) if head == "members" else None
        targets = len(task.targets)
        self.last = (
            zero_convolution(4 * width + cell_width, self.head.count) if self.head else zero_convolution(width, targets)
        )
        self.shift = zero_convolution(cell_width, targets) if self.cell and not self.head else None

    @property
    def any_size(self) -> bool:
        """Whether fair CRPS and spread over error do not depend on the number of members."""
        return self.head is None and not self._attention

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Pass the units (x - location)/scale of samples to the head."""
        if self.head:
            self.head.normalise(location, scale)

    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit past errors of the ensemble, and the baseline; gradient descent trains all other parameters."""
        fitted = self.head or self.start
        assert fitted is not None
        fitted.fit(batches, self.features.errors)

    def forward(self, sample: Sample) -> Distribution:
        """Return the corrected distribution of a batch."""
        features = self.features(sample)
        errors = self.features.errors_among(features)
        own, seen = self._view(sample, features)
        M = own.shape[1]
        shared = self.place(self.shared(self.stem(seen[:, : self._convolved])))
        x = self.members(own.flatten(0, 1), M, shared)
        cell = [self.cell(seen)] if self.cell else []
        if self.head:
            x = x.unflatten(0, (-1, M))
            maps = [shared, x.mean(1), x.square().mean(1), *cell]
            return self.head(self.last(torch.cat(maps, dim=1)), sample, errors)
        output = self.last(x).unflatten(0, (-1, M))
        if self.shift:
            output = output + self.shift(*cell)[:, None]
        # Scores are computed in single precision at least.
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        members, unit = self._start(sample, errors)
        return Ensemble((members + unit[:, None] * output).movedim(1, 0))

    def _view(self, sample: Sample, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return maps of each member (B, M, C, H, W), and shared maps (B, F, H, W)."""
        x = sample.ensemble
        if self._attention:
            s = torch.sqrt(spread(x).square() + SMALLEST_SPREAD**2)
            own = (x - x.mean(1, keepdim=True)) / s[:, None]
            if (last := self.features.inputs) < x.shape[2]:  # who belongs to a group, for any share of the group
                own = torch.cat([own[:, :, :last], x[:, :, last:]], dim=2)
            return own, features
        return x, features[:, self._moments :]

    def _start(self, sample: Sample, errors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the members (B, M, T, H, W) that the network corrects, and the unit (B, T, H, W) of corrections.

        From the baseline `climate`, the members get its mean and spread. Without attention a member must not depend on
        the others: each is corrected like the mean.
        """
        assert self.start is not None
        members = select_channels(sample.ensemble, self._targets, 2)
        climate = self.start if isinstance(self.start, ClimateBaseline) else None
        if not self._attention:
            # The feature is log(size of errors) + 2.
            unit = torch.exp(errors[:, len(self._targets) :] - 2)
            return climate.corrected(members, sample, errors) if climate else members, unit
        mean, unit = self.start(sample, errors)
        if climate:
            s = torch.sqrt(spread(members).square() + SMALLEST_SPREAD**2)
            members = mean[:, None] + (members - members.mean(1, keepdim=True)) * (unit / s)[:, None]
        return members, unit
