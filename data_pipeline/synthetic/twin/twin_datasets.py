"""The function `twin`: the twin experiment as xarray datasets, for notebooks and tutorials."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
import xarray as xr

from data_pipeline.common.progress import Progress
from data_pipeline.formats.open import open_analysis, open_ensemble, open_static
from data_pipeline.grid import Grid
from data_pipeline.synthetic.twin.experiment import Twin
from data_pipeline.synthetic.twin.grib_writer import TwinWriter


def twin(
    variables: Sequence[str] = ("2t",),
    lead_times: Sequence[int] = (24, 48),
    *,
    years: tuple[int, int] = (2005, 2016),
    dates: int = 2,
    members: int = 5,
    rows: int = 9,
    columns: int = 16,
    difficulty: float = 1.0,
    seed: int = 0,
    shuffled: bool = False,
) -> tuple[xr.Dataset, xr.Dataset]:
    """Return forecasts (init_time, lead_time, number, ...) and analyses (time, ...) of a small planet, in memory.

    A chaotic model on the sphere is nature, and an imperfect model makes the forecasts (docs/twin.md). Each year from
    the first to the last of `years` has `dates` starts (an even number). `deepweather prepare` with the same options
    writes the same values; its default grid is finer. The forecasts also have the static fields lsm and z. Two starts
    in each of 12 years take some seconds, and each further pair of starts takes the same time.
    """
    with tempfile.TemporaryDirectory(prefix="deepweather-") as folder, ExitStack() as stack:
        experiment = Twin(folder, rows, columns, *years, dates, members, (), difficulty, seed, shuffled)
        writer = TwinWriter(Path(folder), Grid.regular(rows, columns))
        writer.write_static()
        progress = stack.enter_context(Progress("twin: start pair", dates // 2))
        with torch.inference_mode():
            for pair in experiment.pairs():
                writer.write_pair(pair)
                progress.step()
        ensemble = open_ensemble(f"{folder}/output.*", variables, lead_times, chunks=None)
        analysis = open_analysis(f"{folder}/analysis.*", variables, chunks=None)
        static = open_static(f"{folder}/static")
        return ensemble.merge(static).load(), analysis.load()
