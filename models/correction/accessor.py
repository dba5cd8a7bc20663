"""The accessor `dataset.deepweather` of xarray, which `import deepweather` registers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    from models.correction.loading import ExportedCorrector
    from models.corrector import Corrector


@xr.register_dataset_accessor("deepweather")
class DatasetAccessor:
    """Methods on a dataset of forecasts."""

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

    def correct(self, corrector: str | Path | Corrector | ExportedCorrector, **options: Any) -> xr.Dataset:
        """Return the forecasts with corrected members, by a corrector or by its file, with options of its `correct`."""
        from models.correction.loading import load

        if isinstance(corrector, str | Path):
            corrector = load(corrector)
        return corrector.correct(self._dataset, **options)
