"""The prognostic state of atmosphere and land, for a batch of independent simulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class State:
    """The state of B independent simulations at one time."""

    spectrum: Tensor
    """(2N, N, 5, B) q₁, q₂, q₃ in units of Ω; temperature at 850 hPa, K; column water vapour, kg m⁻²."""
    skin: Tensor
    """(W, H, B) temperature of the land surface, K; used where there is land."""
    rain: Tensor
    """(W, H, B) precipitation since the start of the forecast, kg m⁻²."""
    sea_anomaly: Tensor
    """(W, H, B) anomaly of the sea temperature, constant within a year, K."""
    day: float
    """Day of the year, 1.0 at the start of 1 January; the same for all B."""

    @property
    def batch(self) -> int:
        """The number of simulations B."""
        return self.skin.shape[-1]

    def take(self, index: slice | Tensor) -> State:
        """Return the simulations at `index`."""
        return self._each(lambda field: field[..., index].contiguous())

    def repeat(self, count: int) -> State:
        """Return `count` copies of each simulation; the copies of one simulation are adjacent."""
        return self._each(lambda field: field.repeat_interleave(count, -1))

    def reset_rain(self) -> State:
        """Return the state with precipitation set to 0."""
        return replace(self, rain=torch.zeros_like(self.rain))

    def contract(self, count: int, factor: float) -> State:
        """Multiply deviations from the mean by `factor`, in each group of `count` neighbouring simulations."""

        def contracted(field: Tensor) -> Tensor:
            groups = field.view(*field.shape[:-1], -1, count)
            mean = groups.mean(-1, keepdim=True)
            return (mean + factor * (groups - mean)).view(field.shape)

        return replace(self, spectrum=contracted(self.spectrum), skin=contracted(self.skin))

    @staticmethod
    def join(parts: Sequence[State]) -> State:
        """Return the simulations of all parts, one part after the other; all parts must have the same day."""
        fields = zip(*((part.spectrum, part.skin, part.rain, part.sea_anomaly) for part in parts), strict=True)
        spectrum, skin, rain, sea_anomaly = (torch.cat(field, -1) for field in fields)
        return State(spectrum, skin, rain, sea_anomaly, parts[0].day)

    def _each(self, change: Callable[[Tensor], Tensor]) -> State:
        return State(change(self.spectrum), change(self.skin), change(self.rain), change(self.sea_anomaly), self.day)
