"""The training climate of a corrector: the mean and the typical departure of each input, as its normaliser has them."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

STEP = 1e-3
"""Precision of the means in the text of `TrainingClimate.pack`, in typical departures."""


@dataclass(frozen=True)
class TrainingClimate:
    """Mean (C, h, w) and typical departure (C,) of each input in the training years, as `models.normalizer` has them.

    Of the channels `targets` with a power in `powers` below 1, both describe lower + max(x - lower, 0)^power with the
    bounds `lower`; of all other channels, they describe the values x themselves.
    """

    location: np.ndarray
    scale: np.ndarray
    targets: tuple[int, ...] = ()
    powers: tuple[float, ...] = ()
    lower: tuple[float, ...] = ()

    @classmethod
    def of(cls, normalizers: list[Any], targets: tuple[int, ...]) -> TrainingClimate:
        """Return the climate of a normaliser, or the mean climate of the normalisers of a committee."""
        location, scale = (
            np.mean([getattr(one, name).cpu().double().numpy() for one in normalizers], 0)
            for name in ("location", "scale")
        )
        first = normalizers[0]
        return cls(location, scale, targets, tuple(map(float, first.powers)), tuple(map(float, first.bounds)))

    def pack(self) -> dict[str, Any]:
        """Return this climate as plain values; the means are rounded to `STEP` and take about a byte each."""
        origin = self.location.reshape(len(self.scale), -1)[:, 0]
        unit = STEP * self.scale
        steps = np.rint((self.location - origin[:, None, None]) / unit[:, None, None]).astype("<i8")
        differences = np.diff(steps.reshape(len(unit), -1), axis=1, prepend=0).astype("<i4")
        return {
            "origin": origin.tolist(), "scale": self.scale.tolist(), "targets": list(self.targets),
            "powers": list(self.powers), "lower": list(self.lower),
            "steps": base64.b64encode(zlib.compress(differences.tobytes())).decode(),
        }  # fmt: skip

    @classmethod
    def unpack(cls, values: Mapping[str, Any], shape: tuple[int, ...]) -> TrainingClimate:
        """Return the climate of `pack` for fields of `shape` (C, H, W); `ValueError` if the values are something else.

        Only as much is unpacked as the shape needs, because a text of a few bytes can unpack to any size.
        """
        try:
            origin, scale = (np.array(values[name], np.float64) for name in ("origin", "scale"))
            size = 4 * int(np.prod(shape))
            octets = zlib.decompressobj().decompress(base64.b64decode(values["steps"], validate=True), size)
            targets, lower = tuple(map(int, values["targets"])), tuple(map(float, values["lower"]))
            powers = tuple(map(float, values["powers"]))
        except (KeyError, TypeError, zlib.error, binascii.Error) as error:
            raise ValueError(f"its training climate cannot be unpacked: {error}") from None
        if (
            len(octets) != size
            or not origin.shape == scale.shape == shape[:1]
            or not len(targets) == len(lower) == len(powers)
        ):
            raise ValueError("its training climate has another size than its inputs")
        steps = np.frombuffer(octets, "<i4").reshape(shape[0], -1).cumsum(1, dtype=np.float64).reshape(shape)
        location = origin[:, None, None] + STEP * scale[:, None, None] * steps
        if not (np.isfinite(location).all() and (scale > 0).all() and all(0 < p <= 1 for p in powers)):
            raise ValueError("its training climate has invalid values")
        return cls(location, scale, targets, powers, lower)

    def values(self, ensemble: np.ndarray, channel: int) -> np.ndarray:
        """Return the members of a channel in the units of `location`, float64."""
        members = ensemble[:, channel].astype(np.float64)
        return self._power(members, channel)

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
        return self._power(values - values.mean(0) + self.location[channel], channel, inverse=True)

    def mean(self, channel: int) -> np.ndarray:
        """Return the training mean (h, w) of a channel in physical units."""
        return self._power(self.location[channel], channel, inverse=True)

    def _power(self, values: np.ndarray, channel: int, inverse: bool = False) -> np.ndarray:
        if channel not in self.targets:
            return values
        target = self.targets.index(channel)
        lower, power = self.lower[target], self.powers[target]
        return values if power == 1 else lower + np.maximum(values - lower, 0) ** (1 / power if inverse else power)
