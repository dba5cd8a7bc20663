"""Runs of `correct` in the process of a test: correctors with random weights, GRIB files in and out."""

import json
from collections.abc import Mapping
from pathlib import Path

import eccodes
import numpy as np
import torch
from grib_parts import GRID, KEYS
from tested_device import device_of

from data_pipeline.writing import Edit, Encoder, NewMessage, rewrite
from models.corrected_files.correct_files import correct_files
from models.corrected_files.sidecar import sidecar_path
from models.correction.guards import Guard
from models.corrector import Corrector
from models.engines.torch_engine import TorchEngine
from models.members.options import CorrectionOptions
from models.parallel.mesh import Mesh

EMOS = {"_target_": "models.statistical.emos.EMOS"}


def random_corrector(task, spec=EMOS, grid=GRID, provenance=None, seed=0, size=0.05, location=280.0, scale=8.0):
    """Return a corrector with different weights and units in every cell."""
    torch.manual_seed(seed)
    corrector = Corrector(task, grid, spec, torch.rand(3, *grid.shape), provenance)
    corrector.normalizer.location.fill_(location).add_(scale / 8 * torch.randn(grid.shape))
    corrector.normalizer.scale.fill_(scale)
    corrector.normalizer.always.fill_(1)
    for tensor in corrector.model.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(size * torch.randn_like(tensor))
    return corrector.eval()


def write_members(path, fields, grid=GRID, **options):
    """Write forecasts of members as GRIB1; `fields` are by name or number of the parameter, date, lead time, member."""
    count = max(number for *_, number in fields)
    keys = {**KEYS, "type": "pf", "stream": "enfo", "numberOfForecastsInEnsemble": count, **options}
    encoder = Encoder(grid, **keys)
    with path.open("wb") as file:
        for (name, start, lead, number), field in fields.items():
            own = {"shortName" if isinstance(name, str) else "paramId": name, "dataDate": start}
            file.write(encoder.encode(field, **own, endStep=lead, perturbationNumber=number))
    return path


def read_messages(path, *names):
    """Return these ecCodes keys of each message, and its values with NaN where they are missing."""
    found = []
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            keys = tuple(eccodes.codes_get(handle, name) for name in names)
            eccodes.codes_set(handle, "missingValue", 1e30)
            values = eccodes.codes_get_values(handle)
            found.append((keys, np.where(values == 1e30, np.nan, values)))
            eccodes.codes_release(handle)
    return found


def read_values(path, grid=GRID):
    """Return the values of all messages, (count, H, W)."""
    return np.array([values.reshape(grid.shape) for _, values in read_messages(path)])


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


def read_sidecar(output):
    """Return the sidecar of an output."""
    return json.loads(sidecar_path(output).read_text())


def rewrite_fields(source, target, correction):
    """Rewrite a file with fields, or new messages, in place of edits."""

    def edit(message):
        found = correction(message)
        if found is None:
            return None
        return Edit(after=(found,)) if isinstance(found, NewMessage) else Edit(np.asarray(found))

    return rewrite(source, target, edit)
