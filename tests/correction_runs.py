"""Runs of `correct` in the process of a test."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tested_device import device_of

from data_pipeline.formats.grib import Edit, NewMessage, rewrite
from models.correction.correct_files import correct_files
from models.correction.guards import Guard
from models.correction.options import CorrectionOptions
from models.correction.torch_engine import TorchEngine
from models.parallel.mesh import Mesh


def correct(
    corrector, forecast, output, mesh=None, quantile_levels="hazen", seed=0, analysis=None, names=None, device=None,
    on_problem="error", options=None,
):  # fmt: skip
    """Correct one file, or a list of files, with one corrector or a dict of correctors, on the tested device."""
    mesh = mesh or Mesh.single()
    device = device_of(mesh.ranks, mesh.rank) if device is None else device
    correctors = corrector if isinstance(corrector, Mapping) else {"": corrector}
    engines = [TorchEngine(one, mesh.domain(one.grid), device, name) for name, one in correctors.items()]
    forecasts = [forecast] if isinstance(forecast, str | Path) else forecast
    options, guards = options or CorrectionOptions(quantile_levels, seed), [Guard(on_problem)] * len(engines)
    return correct_files(engines, forecasts, output, mesh, options, analysis, names, guards=guards)


def correct_with(engines, forecasts, output, finish):
    """Correct files with engines in this process, and call `finish` with the pipelines."""
    return correct_files(engines, forecasts, output, Mesh.single(), CorrectionOptions(), finish=finish)


def rewrite_fields(source, target, correction):
    """Rewrite a file with fields, or new messages, in place of edits."""

    def edit(message):
        found = correction(message)
        if found is None:
            return None
        return Edit(after=(found,)) if isinstance(found, NewMessage) else Edit(np.asarray(found))

    return rewrite(source, target, edit)
