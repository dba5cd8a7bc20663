"""Corrected: all fields that one corrector makes of one forecast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipeline.writing.product import ClimateSample, Product


@dataclass(frozen=True)
class Corrected:
    """The output fields of one forecast on the whole grid, in the units of the corrector's targets."""

    init_time: np.datetime64
    lead_time: int
    """Hours."""
    members: np.ndarray | None
    """(M, T, H, W) float64, without members if only products are made; None if the fields were discarded."""
    numbers: tuple[int, ...]
    """The numbers of the members M."""
    products: tuple[tuple[Product, np.ndarray], ...] = ()
    """Products with their fields (H, W)."""
    climate: ClimateSample | None = None
    """What products are compared with; None if none is."""
    method: str = "corrector"
    """What made the fields: the corrector, or a fallback."""
    problems: tuple[str, ...] = ()
    """One sentence for each reason why the corrector was not used, or not as asked."""
    absent: tuple[str, ...] = ()
    """The groups of members that the forecast lacks."""
    raw_members: int = 0
    """Number of its raw members."""
