"""Trunk: encoder and decoder with skip connections, which U-Net and transformer share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.common.checks import check_between, check_integer
from data_pipeline.grid import Grid
from models.layers import row_blocks
from models.layers.attention import MemberAttention
from models.layers.channel_axis import ChannelConv2d, DividedChannelNorm, DividedDropout, FilterConv2d
from models.layers.convolution import Conv2d, MemberConv2d, add_to_members
from models.layers.dropout import Dropout
from models.layers.mixture import Mixing
from models.layers.norms import ChannelNorm
from models.layers.resolution import Downsample, Upsample
from models.layers.row_blocks import BlockWeights, RowBlock
from models.parallel.domain import Domain
from models.parallel.memory_format import channels_last

ConvolutionFactory = Callable[..., nn.Module]
"""Called with grid, inputs, outputs and `parity` of the inputs: `Conv2d`, or `Mixing` for mixtures of experts."""


class ResidualBlock(nn.Module):
    """Two convolutions with normalisation and GELU, added to a linear map of the input.

    `parity` is the parity of the inputs (`HaloPad`), for the first block of a network. The ranks of a channel axis
    divide the channels of `wide` blocks. The last `shared` inputs are maps that all members of a forecast share. With
    `recompute`, large maps are computed again in the backward pass where that saves memory (`RowBlock`).
    """

    def __init__(
        self,
        grid: Grid | Domain,
        inputs: int,
        outputs: int,
        dropout: float,
        convolution: ConvolutionFactory = Conv2d,
        parity: Sequence[int] = (),
        wide: bool = False,
        shared: int = 0,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.skip, domain = nn.Conv2d(inputs, outputs, 1), Domain.of(grid)
        self._has_rows = recompute and domain.ranks == 1 and convolution is Conv2d
        self._numbers = (inputs - shared) * domain.shape[0] * domain.shape[1]
        if wide and domain.channel_axis:
            self.path = nn.Sequential(
                FilterConv2d(domain, inputs, outputs), DividedChannelNorm(domain, outputs), nn.GELU(),
                DividedDropout(domain, dropout, outputs),
                ChannelConv2d(domain, outputs, outputs), ChannelNorm(outputs), nn.GELU(),
            )  # fmt: skip
            return
        # `Identity` has the place of the activation, so that weights have the same names on every mesh.
        self.path = nn.Sequential(
            MemberConv2d(grid, inputs, outputs, shared, parity[: inputs - shared])
            if shared
            else convolution(grid, inputs, outputs, parity=parity),
            ChannelNorm(outputs, gelu=True), nn.Identity(),
            Dropout(grid, dropout, channels=True),
            convolution(grid, outputs, outputs), ChannelNorm(outputs, gelu=True), nn.Identity(),
        )  # fmt: skip

    def forward(
        self, x: Tensor, shared: Tensor | None = None, finer: Tensor | None = None, resize: nn.Module | None = None
    ) -> Tensor:
        """Map (B M, inputs, H, W), without the maps `shared` (B, C, H, W), to (B M, outputs, H, W).

        With `resize`, the maps are `resize(x)`, which are joined with `finer` if it is given.
        """
        inputs = (x,) if finer is None else (finer, x)
        source = partial(_maps, resize)
        if self._keeps_little(x):
            return self._in_rows(source, inputs, shared)
        x = source(*inputs)
        if shared is None:
            return self.skip(x) + self.path(x)
        first, *others = self.path
        y = first(x, shared)
        for layer in others:
            y = layer(y)
        own, rest = self.skip.weight.split((x.shape[1], shared.shape[1]), dim=1)
        y = y + functional.conv2d(x, own, self.skip.bias)
        return add_to_members(y, functional.conv2d(shared, rest))

    def _keeps_little(self, x: Tensor) -> bool:
        """Return whether a training step computes the rows of `x` in turn: on CPUs, where maps are large."""
        weight = self.skip.weight
        # Checked first, because compiled code would be bound to the number of rows.
        if not self._has_rows or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return False
        cpu = x.device.type == "cpu" and x.dtype == weight.dtype and not torch.is_autocast_enabled("cpu")
        return cpu and len(x) * self._numbers > row_blocks.NUMBERS_AT_ONCE

    def _in_rows(self, source: Callable[..., Tensor], inputs: tuple[Tensor, ...], shared: Tensor | None) -> Tensor:
        """Return `forward`, computed for some rows at a time; see `RowBlock`."""
        layers: Any = self.path
        first, norm, _, dropout, second, last_norm, _ = layers
        own, own_skip = first.weight, self.skip.weight
        maps: tuple[Tensor, ...] = ()
        if shared is not None:
            parts = own.shape[1] - shared.shape[1], shared.shape[1]
            (own, rest), (own_skip, rest_skip) = own.split(parts, dim=1), own_skip.split(parts, dim=1)
            maps = first.convolve_with(shared, rest, None), functional.conv2d(shared, rest_skip)
        assert self.skip.bias is not None
        weights = BlockWeights(
            own, first.bias, norm.weight, norm.bias, second.weight, second.bias, last_norm.weight, last_norm.bias,
            own_skip, self.skip.bias,
        )  # fmt: skip
        rows = len(inputs[0])
        block = RowBlock(
            source, (first.input_window, second.window), max(1, row_blocks.NUMBERS_AT_ONCE // self._numbers),
            rows if shared is None else rows // len(shared),
        )  # fmt: skip
        return block(inputs, weights, dropout.channel_factors(inputs[0], len(own)), maps)


def _maps(resize: nn.Module | None, *inputs: Tensor) -> Tensor:
    """Return the last input, resized, joined with the inputs before it."""
    *others, x = inputs
    x = resize(x) if resize else x
    return torch.cat([*others, x], dim=1) if others else x


class Trunk(nn.Module):
    """A U-Net (Ronneberger et al. 2015, arXiv:1505.04597) without its last layer.

    The resolution is halved `depth` times, with `width` channels at the finest level and twice as many at each coarser
    one. All blocks except at the finest level are wide. With `mixture`, the options of `Mixing`, the convolutions at
    the finest level are mixtures of experts.

    Rows of a batch may be members of forecasts. With `member_attention`, the members of a forecast attend to one
    another at every level of the encoder. `parity` is the parity of the inputs (`HaloPad`). The last `shared`
    inputs are maps that all members of a forecast share. `recompute` is an option of `ResidualBlock`.
    """

    def __init__(
        self,
        grid: Grid | Domain,
        inputs: int,
        width: int,
        depth: int,
        dropout: float,
        mixture: dict[str, Any] | None,
        member_attention: bool = False,
        parity: Sequence[int] = (),
        shared: int = 0,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        check_integer("model.width", width, 1)
        check_integer("model.depth", depth, 0)
        check_between("model.dropout", dropout, 0, 1)
        grids = [Domain.of(grid)]
        for _ in range(depth):
            grids.append(grids[-1].coarsen())
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(Downsample(fine) for fine in grids[:-1])
        self.up = nn.ModuleList(Upsample(fine) for fine in grids[:-1])
        convolutions = [Mixing.of(mixture), *[Conv2d] * depth]
        # A mixture chooses its experts from all inputs together, so its inputs are joined before.
        self._divided = bool(shared) and mixture is None
        self.encoder = nn.ModuleList(
            ResidualBlock(
                g,
                before,
                w,
                dropout if level else 0,
                convolutions[level],
                () if level else parity,
                wide=level > 0,
                shared=0 if level or not self._divided else shared,
                recompute=recompute,
            )
            for level, (g, before, w) in enumerate(zip(grids, [inputs, *widths], widths, strict=False))
        )
        self.attention = nn.ModuleList(MemberAttention(w, w // width) for w in widths if member_attention)
        self.decoder = nn.ModuleList(
            ResidualBlock(g, fine + coarse, fine, dropout, convolution, wide=level > 0, recompute=recompute)
            for level, (g, fine, coarse, convolution) in enumerate(
                zip(grids, widths, widths[1:], convolutions, strict=False)
            )
        )

    def forward(self, x: Tensor, M: int = 1, shared: Tensor | None = None) -> Tensor:
        """Map (B M, inputs, H, W), without the maps `shared` (B, C, H, W), to (B M, width, H, W).

        The M members of a forecast are consecutive rows.
        """
        levels: list[Tensor] = []
        if shared is not None and not self._divided:
            x, shared = torch.cat([x, shared[:, None].expand(-1, M, -1, -1, -1).flatten(0, 1)], dim=1), None
        x, shared = channels_last(x), None if shared is None else channels_last(shared)
        for level, block in enumerate(self.encoder):
            x = block(x, None, None, self.down[level - 1]) if level else block(x, shared)
            levels.append(x := self.attention[level](x, M) if self.attention else x)
        for level in reversed(range(len(self.decoder))):
            x = self.decoder[level](x, None, levels[level], self.up[level])
        return x
