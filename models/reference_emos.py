"""EMOS as a reference: `evaluate` fits it to the training dates if no corrector has the name `emos`.

`train` compares a network's validation with it. The fit is kept in the user's cache folder, so that the same data, task
and dates are fitted once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import CACHE_ERRORS, cache_folder
from data_pipeline.common.identity import hash_of
from data_pipeline.common.messages import say
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.protocols import DataSource
from data_pipeline.task import Task
from models.corrector import Corrector, needed_task, reads_moments
from models.laws import with_laws
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.parallel.mesh import Mesh
from models.statistical.cases import CASES_BYTES
from models.statistical.emos_sharing import expected_evaluations

SPEC: dict[str, Any] = {"_target_": "models.statistical.emos.EMOS"}
FIT_VERSION = 5
"""Part of a cached fit's name; raise it with every change of the fit."""
SECONDS_PER_EVALUATION = 4e-7
"""Seconds of a score with its derivatives for one case of a fit, as measured on one thread; rain takes up to twice."""
PILOT = 5
"""Number of forecasts that are read to estimate the time of a fit, after a first one."""


class LeftOutError(InputError):
    """A reference is left out, because it cannot be fitted or its fit would take too long."""


def fit_emos(
    source: DataSource, task: Task, dates: Dates, members: int | None, domain: Domain, mesh: Mesh,
    minutes: float, part: str = "", powers: Sequence[float] | None = None,
) -> Corrector:  # fmt: skip
    """Return an EMOS for the whole grid, fitted on `dates` by all ranks, or taken from the cache.

    Raises `LeftOutError` if the fit would take longer than `minutes`. `part` names the fold in messages. `powers` are
    the powers of the targets, by default those of their laws.
    """
    task = needed_task(SPEC, task)
    spec = with_laws(SPEC | {"power": powers and (powers[0] if len(set(powers)) == 1 else powers)}, task)
    moments = reads_moments(spec, task)

    def opened(**tile: slice) -> ForecastDataset:
        data = ForecastDataset(source, task, dates, members=members, moments=moments, **tile)
        return data if moments else data.with_all_groups()

    file = mesh.run_on_first(lambda: _cache_file(opened().fingerprint, spec))
    if (cached := mesh.run_on_first(lambda: _load(file))) is not None:
        say(f"emos was fitted on the training dates{part} before, and is read from {file}")
        return cached
    # Cells are independent, so that ranks of the data axis get a part of the globe too.
    shared = mesh.shared(domain.grid)
    rows, columns = shared.tile
    data = opened(rows=rows, columns=columns)
    expected = mesh.run_on_first(lambda: estimated_seconds(data))
    if expected > 60 * minutes:
        raise LeftOutError(
            f"its fit would take about {expected / 60:.0f} minutes, and emos_minutes={minutes:g}; train it with "
            "deepweather train model=emos and give it as correctors={emos: ...}, or allow more minutes"
        )
    say(f"fitting emos on the training dates{part}, about {expected:.0f} s")
    provenance = {"train_dates": Dates(dates.spans).to_json(), "val_dates": [], "members": data.members}
    corrector = Corrector(task, shared, spec, assemble(data.static, shared), provenance, data.meanings)
    corrector.fit(data)
    whole = corrector.on(domain.grid).eval()
    mesh.run_on_first(lambda: _save(whole, file))
    return whole


def estimated_seconds(data: ForecastDataset) -> float:
    """Return the time that a fit of EMOS takes, from the time of reading a few of its forecasts.

    The fit reads all forecasts once for the normalisation, and then block by block of rows. The first read of a process
    opens files and loads libraries, and takes up to a thousand times longer than others: it does not count, and the
    median of the others does.
    """
    count, (H, W) = len(data), (data.rows.stop - data.rows.start, data.columns.stop - data.columns.start)
    targets = len(data.task.targets)
    size = min(H, max(1, CASES_BYTES // (count * W * targets * 12)))
    chosen = np.linspace(0, count - 1, PILOT).astype(int).tolist()
    seconds = 0.0
    for part, passes in ((data, 1), (data.band(slice(0, size)), -(-H // size))):
        part[count // 2]
        ends = [time.monotonic()]
        for index in chosen:
            part[index]
            ends.append(time.monotonic())
        seconds += float(np.median(np.diff(ends))) * count * passes
    leads = len(data.task.lead_times)
    return seconds + SECONDS_PER_EVALUATION * targets * expected_evaluations(-(-count // leads), H * W, leads)


def _cache_file(fingerprint: str, spec: dict[str, Any]) -> Path:
    key = hash_of(fingerprint, spec, version("deepweather"), FIT_VERSION)
    return cache_folder("emos") / f"{key[:24]}.safetensors"


def _load(file: Path) -> Corrector | None:
    """Return a cached fit; None if there is none, or if it is damaged."""
    try:
        return Corrector.load(file) if file.is_file() else None
    except (InputError, *CACHE_ERRORS):
        return None


def _save(corrector: Corrector, file: Path) -> None:
    """Keep a fit; nothing happens if the cache cannot be written."""
    try:
        corrector.save(file)
    except (InputError, *CACHE_ERRORS):
        return  # the next run fits again
