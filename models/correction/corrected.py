"""Corrected: all fields that one corrector makes of one forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Corrected:
    """The output fields of one forecast on the whole grid, in the units of the corrector's targets."""

    init_time: np.datetime64
    lead_time: int
    """Hours."""
    members: np.ndarray | None
    """(M, T, H, W) float64; None if only products are made."""
    numbers: tuple[int, ...]
    """The numbers of the members M."""
    products: Mapping[Any, np.ndarray] = field(default_factory=dict)
    """(T, H, W) for each product."""
    method: str = "corrector"
    """What made the fields: the corrector, or a fallback."""
    problems: tuple[str, ...] = ()
    """One sentence for each reason why the corrector was not used, or not as asked."""
