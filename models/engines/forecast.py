"""RawForecast: one forecast of the input, as a corrector reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipeline.protocols import Fields
from data_pipeline.samples.pseudo_members import complete_cells
from models.engines.shared_reading import SharedReading
from models.parallel.domain import Domain


@dataclass(frozen=True)
class RawForecast:
    """One start and lead time of the input in physical units, on this rank's tile (h, w) of the grid."""

    ensemble: np.ndarray
    """(M, C, h, w) float32; any value where `mask` is False."""
    mask: np.ndarray
    """(C, h, w) True where all members have a value."""
    raw: np.ndarray
    """(M, T, h, w) float64: the exact raw members of the targets, NaN where missing."""
    init_time: np.datetime64
    lead_time: int
    """Hours."""
    numbers: tuple[int, ...]
    """The numbers of the members M."""


def read_forecast(
    inputs: Fields, raw: Fields, domain: Domain, init: int, lead: int, reading: SharedReading
) -> RawForecast:
    """Read this rank's tile of the forecast at the positions `init` and `lead` of `inputs` and `raw`."""
    # In single precision, different members may become equal and lose their order.
    exact = reading.exact(raw, init, lead, domain)
    ensemble = np.empty((len(inputs.numbers), len(inputs.variables), *domain.own_shape), np.float32)
    reading.read(inputs, init, lead, ensemble, domain)
    start = inputs.init_times[init].astype("datetime64[s]")
    return RawForecast(ensemble, complete_cells(ensemble), exact, start, int(inputs.lead_times[lead]), inputs.numbers)
