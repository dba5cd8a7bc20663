"""`load`: a corrector from its file, or from the file of an exported corrector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data_pipeline.common.extras import package
from data_pipeline.common.file_format import ONNX_FORMAT, file_format
from models.engines.onnx_engine import OnnxEngine

if TYPE_CHECKING:
    import xarray as xr

    from models.corrector import Corrector


def load(path: str | Path) -> Corrector | ExportedCorrector:
    """Return the corrector in a file of `train`, `fit` or `combine`, or in an ONNX file of `export`.

    An exported corrector needs no PyTorch. Raises `InputError` if the file is missing, damaged or not a corrector.
    """
    path = Path(path).expanduser()
    if path.is_file() and file_format(path) is ONNX_FORMAT:
        return ExportedCorrector(path)
    with package("a corrector that is not exported", "train"):
        from models.corrector import Corrector
    return Corrector.load(path)


class ExportedCorrector:
    """A corrector in an ONNX file: it corrects datasets, on the processor and without PyTorch."""

    def __init__(self, path: str | Path) -> None:
        self.engine = OnnxEngine(Path(path))
        self.task, self.grid = self.engine.description.task, self.engine.description.grid

    def __repr__(self) -> str:
        from models.corrector_summary import as_text, summary_rows

        return as_text(
            summary_rows(self.task, self.grid, {"_target_": "exported.ONNX"}, self.engine.description.provenance)
        )

    def correct(
        self,
        dataset: xr.Dataset,
        *,
        analysis: xr.Dataset | None = None,
        names: Mapping[str, str] | None = None,
        members: str = "ecc-q",
        member_count: int | None = None,
        quantile_levels: str = "hazen",
        products: Sequence[str] | None = None,
        history: str | Sequence[str] | None = None,
        reforecasts: str | Sequence[str] | None = None,
        seed: int = 0,
        on_problem: str = "error",
        untrained_times: str = "problem",
    ) -> xr.Dataset:
        """Return forecasts with corrected members in place of the raw ones, like `Corrector.correct`."""
        with package("correcting a dataset", "train"):
            from models.correction.correct_dataset import correct_dataset
            from models.correction.guards import Guard
        return correct_dataset(
            self.engine, dataset, analysis, names, Guard(on_problem, None, untrained_times), history, reforecasts,
            members=members, member_count=member_count, quantile_levels=quantile_levels, seed=seed,
            products=products,
        )  # fmt: skip
