"""Writing data and page of `correct explain=true`, after the corrected file has been written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from data_pipeline.common.files import atomic_path, write_text
from data_pipeline.grid import Grid
from evaluation.explanation.explanation_page import explanation_page
from evaluation.explanation.explanation_tables import ExplainedCorrector
from evaluation.explanation.forecast_explanation import explain_forecast
from evaluation.report.coastlines import shows_earth
from evaluation.report.maps import Coast
from evaluation.report.shown_data import ExpertMap
from evaluation.run.shown_cases import first_choices
from models.correction.corrected import Corrected
from models.correction.pipeline import CorrectionPipeline, CorrectionPipelines
from models.engines.engine import CorrectorDescription, Engine
from models.engines.forecast import RawForecast
from models.engines.torch_engine import TorchEngine
from models.provenance.choices import choice_text

SHOWN = 6
"""Largest number of forecasts that are explained for each corrector, because each takes C + 2 predictions."""
CORRECTOR = "corrector"
"""The method of `Corrected` where no fallback was used."""


def explanation_path(output: Path) -> Path:
    """Return the page beside a corrected file. The ending of the file stays, because it may be a date.

    >>> explanation_path(Path("out/t850.2026112300")).as_posix()
    'out/t850.2026112300.explain.html'
    """
    return output.with_name(f"{output.name}.explain.html")


def write_explanation(pipelines: CorrectionPipelines, output: Path, about: Mapping[str, str]) -> Path:
    """Write data and page about the corrected file `output`, and return the page's path; `about` are facts of the run.

    The data `OUT.explain.nc` have a group for each corrector.

    The forecasts are read and corrected again, one after the other.
    """
    found = [explained_corrector(pipeline, pipelines.done(number)) for number, pipeline in enumerate(pipelines)]
    path = explanation_path(output)
    with atomic_path(path.with_suffix(".nc")) as partial:
        groups = {f"corrector_{number}": one.data() for number, one in enumerate(found)}
        xr.DataTree.from_dict(groups).to_netcdf(partial, engine="netcdf4")
    write_text(path, explanation_page(found, output.name, about))
    return path


def explained_corrector(pipeline: CorrectionPipeline, done: Sequence[Corrected]) -> ExplainedCorrector:
    """Return what the corrector of a pipeline did with the forecasts `done`; `shown_forecasts` are explained."""
    engine, description = pipeline.engine, pipeline.engine.description
    task, grid = description.task, description.grid
    climate = engine.climate
    channels = list(map(str, task.channels))
    explanations: list[xr.Dataset] = []
    experts = None
    for one in shown_forecasts(done):
        forecast = pipeline.read(one.init_time, one.lead_time)
        if not explanations:
            experts = expert_map(engine, forecast, grid)
        explanations.append(explain_forecast(pipeline.predict, forecast, grid, channels, task.target_channels, climate))
    meanings = {str(meaning.variable): meaning.units for meaning in description.meanings}
    units = tuple(meanings.get(str(target), target.units) for target in task.targets)
    problems = [sentence for one in done for sentence in one.problems]
    return ExplainedCorrector(
        short_name(description.name or str(description.path or "corrector")),
        task.targets, coast_of(engine), tuple(explanations), len(done), units, experts,
        tuple(dict.fromkeys([*_fallbacks(done), *pipeline.gaps.sentences(), *problems])), dict(_about(description)),
    )  # fmt: skip


def short_name(name: str) -> str:
    """Return a name for the page: of a path, the file's name, or its folder's if the file has the usual name.

    >>> short_name("runs/unet/corrector.safetensors"), short_name("runs/t850.safetensors"), short_name("wind")
    ('unet', 't850', 'wind')
    """
    path = Path(name)
    return (path.parent.name or path.stem) if path.stem == "corrector" else path.name.removesuffix(".safetensors")


def shown_forecasts(done: Sequence[Corrected], count: int = SHOWN) -> list[Corrected]:
    """Return the forecasts to explain: those of the latest start that the corrector itself made, by lead time.

    Of more than `count`, evenly spaced ones with the first and the last lead time.
    """
    made = [one for one in done if one.method == CORRECTOR]
    if not made:
        return []
    latest = max(one.init_time for one in made)
    mine = sorted((one for one in made if one.init_time == latest), key=lambda one: one.lead_time)
    kept = np.unique(np.round(np.linspace(0, len(mine) - 1, min(count, len(mine)))).astype(int))
    return [mine[k] for k in kept]


def expert_map(engine: Engine, forecast: RawForecast, grid: Grid) -> ExpertMap | None:
    """Return the choices of the last mixture of experts for a forecast; None without a mixture, and for ONNX."""
    if not isinstance(engine, TorchEngine):
        return None
    return first_choices(engine.corrector, lambda: engine.predict(forecast), grid.shape)


def coast_of(engine: Engine) -> Coast:
    """Return the coast of an engine's maps: the Earth's, unless the corrector's land-sea mask is that of another."""
    description = engine.description
    land: np.ndarray | None = None
    if isinstance(engine, TorchEngine) and "lsm" in description.task.static_names:
        land = engine.corrector.static[description.task.static_names.index("lsm")].cpu().double().numpy()
    return Coast(description.grid, land, shows_earth(description.grid, land, False))


def _fallbacks(done: Sequence[Corrected]) -> Iterator[str]:
    for method, count in Counter(one.method for one in done if one.method != CORRECTOR).items():
        yield f"{count} of {len(done)} forecasts were made by {method}, not by the corrector; they are not explained"


def _about(description: CorrectorDescription) -> Iterator[tuple[str, str]]:
    provenance: Mapping[str, Any] = description.provenance
    if description.path:
        yield "file", str(description.path)
    if description.sha256:
        yield "sha256", description.sha256
    yield "task", description.task.name
    if "deepweather" in provenance:
        yield "trained by deepweather", str(provenance["deepweather"])
    for choice in provenance.get("choices", []):
        yield "chosen by auto", choice_text(choice)
