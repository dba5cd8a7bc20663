"""The training climate of a corrector: the mean and the typical departure of each input, as its normaliser has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TrainingClimate:
    """Mean (C, h, w) and typical departure (C,) of each input in the training years, as `models.normalizer` has them.

    With a `power` below 1, both describe lower + max(x - lower, 0)^power of the channels `targets`, whose lower bounds
    are `lower`; of all other channels, they describe the values x themselves.
    """

    location: np.ndarray
    scale: np.ndarray
    targets: tuple[int, ...] = ()
    power: float = 1.0
    lower: tuple[float, ...] = ()

    @classmethod
    def of(cls, normalizers: list[Any], targets: tuple[int, ...]) -> TrainingClimate:
        """Return the mean climate of normalisers, which are several in a committee."""
        location, scale = (
            np.mean([getattr(one, name).cpu().double().numpy() for one in normalizers], 0)
            for name in ("location", "scale")
        )
        first = normalizers[0]
        return cls(location, scale, targets, float(first.power), tuple(map(float, first.bounds)))

    def values(self, ensemble: np.ndarray, channel: int) -> np.ndarray:
        """Return the members of a channel in the units of `location`, float64."""
        members = ensemble[:, channel].astype(np.float64)
        return self._power(members, channel, self.power)

    def departures(self, ensemble: np.ndarray, mask: np.ndarray) -> Iterator[np.ndarray]:
        """Yield for each channel the departure (h, w) of the ensemble mean in typical departures; NaN where missing."""
        for channel, (location, scale) in enumerate(zip(self.location, self.scale, strict=True)):
            mean = self.values(ensemble, channel).mean(0)
            yield np.where(mask[channel], (mean - location) / scale, np.nan)

    def centred(self, ensemble: np.ndarray, channel: int) -> np.ndarray:
        """Return the members (M, h, w) of a channel, moved so that their mean is the training mean.

        The members keep their distances from each other, because no model has been trained on a spread of zero.
        """
        values = self.values(ensemble, channel)
        return self._power(values - values.mean(0) + self.location[channel], channel, 1 / self.power)

    def mean(self, channel: int) -> np.ndarray:
        """Return the training mean (h, w) of a channel in physical units."""
        return self._power(self.location[channel], channel, 1 / self.power)

    def _power(self, values: np.ndarray, channel: int, power: float) -> np.ndarray:
        if power == 1 or channel not in self.targets:
            return values
        lower = self.lower[self.targets.index(channel)]
        return lower + np.maximum(values - lower, 0) ** power
