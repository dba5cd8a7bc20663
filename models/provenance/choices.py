"""What an average of models chose: `choices` of the provenance as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def choice_text(choice: Mapping[str, Any]) -> str:
    """Return what the model `auto` chose for a target and lead time, and the CRPS of all that it tried."""
    tried = ", ".join(f"{name} {crps:.4g}" for name, crps in choice["crps"].items())
    return f"{choice['forecast']}: {choice['chosen']} (CRPS in left-out years: {tried})"
