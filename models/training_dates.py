"""The dates on which a corrector was trained and validated, in its provenance: scores on them would be too good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_pipeline.dates import Dates
from data_pipeline.split import Split

SEEN = {"train": "trained", "val": "validated"}
"""The splits whose dates a corrector has seen, and what it was on them."""


def split_provenance(split: Split, lead_times: tuple[int, ...]) -> dict[str, list[list[str]]]:
    """Return the dates of training and validation for the provenance; no date if there is no validation.

    Dates that were left out because they are close to another split count as seen.
    """
    names = [name for name in SEEN if name == "train" or split.validates]
    found = {name: Dates(split.dates(name, lead_times).spans).to_json() for name in names}
    return {f"{name}_dates": found.get(name, []) for name in SEEN}


def seen_dates(provenance: Mapping[str, Any], name: str) -> Dates | None:
    """Return the dates of the split `name`, train or val, in a provenance; None if it does not say.

    Correctors of version 0.1 have the first and last year in `train_years` and `val_years`.
    """
    if (spans := provenance.get(f"{name}_dates")) is not None:
        return Dates.from_json(spans)
    if (years := provenance.get(f"{name}_years")) is not None:
        return Dates.of_years(range(years[0], years[1] + 1))
    return None
