"""Truth checks of arrays that `score` compares: implausible values of the truth are counted, masked or refused."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import get_args

import numpy as np
import xarray as xr

from data_pipeline.common.checks import check_choice
from data_pipeline.dates import epoch_seconds
from data_pipeline.grid import Grid
from data_pipeline.protocols import Fields, Window
from data_pipeline.truth_checks import Findings, TruthChecks, examine
from data_pipeline.variables.meaning import Meaning
from data_pipeline.variables.units import normalize_units
from data_pipeline.variables.variable import Variable


def check_truth(
    values: xr.DataArray, truth: xr.DataArray, grid: Grid, variable: Variable, units: str, policy: TruthChecks
) -> xr.DataArray:
    """Return the `truth` (start, lead time, H, W), without its implausible values if the policy is `mask`.

    They raise an `InputError` with the policy `error`, and else give a `UserWarning`. `values` are the forecasts
    (start, lead time, member, H, W). Ranges are those of the `variable` if the arrays are in its `units`.
    """
    check_choice("truth_checks", policy, get_args(TruthChecks))
    if not units or normalize_units(units) != variable.units:
        variable = Variable("forecast")  # its plausible values are not known
    found = _find(values, truth, grid, variable, whole=policy != "report")
    if policy == "error" or (policy == "mask" and found.mostly_beyond):
        found.refuse()
    for sentence in found.sentences(policy):
        warnings.warn(f"score: {sentence.replace('data.archive.', '')}", UserWarning, stacklevel=3)
    if policy != "mask" or not len(found.suspects):
        return truth
    wrong = np.zeros(truth.shape, bool)
    valid = _valid_times(truth)
    for one in found.suspects:
        wrong[(*np.nonzero(valid == one["time"]), one["row"], one["column"])] = True
    return truth.where(xr.DataArray(~wrong, truth.coords, truth.dims))


def _find(values: xr.DataArray, truth: xr.DataArray, grid: Grid, variable: Variable, whole: bool) -> Findings:
    """Return the implausible values; of forecasts for one time, the first in the arrays has its truth."""
    starts = truth["init_time"].values.astype("datetime64[s]")
    leads = tuple(int(lead) for lead in truth["lead_time"].values)
    times, first = np.unique(_valid_times(truth), return_index=True)
    meaning, reader = (Meaning(variable, variable.units, (0,)),), _ArrayRows(truth.expand_dims("number", 2), grid)
    cells = first[:, None, None, None]
    analyses = Fields(reader, (variable,), times.astype("datetime64[s]"), (0,), (0,), meaning, cells)
    shape = values.shape[:3]
    cells = np.arange(int(np.prod(shape))).reshape(*shape, 1)
    order = np.argsort(starts)
    forecasts = Fields(
        _ArrayRows(values, grid), (variable,), starts[order], leads, tuple(range(shape[2])), meaning, cells[order]
    )
    return examine(analyses, variable, forecasts, whole=whole)


def _valid_times(truth: xr.DataArray) -> np.ndarray:
    """Return the valid time of each start and lead time, seconds since 1970."""
    starts = epoch_seconds(truth["init_time"].values)
    found: np.ndarray = starts[:, None] + 3600 * truth["lead_time"].values.astype(np.int64)
    return found


@dataclass(frozen=True, eq=False)
class _ArrayRows:
    """Reads fields of an array (start, lead time, member, H, W), numbered in this order."""

    array: xr.DataArray
    grid: Grid

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted` (...); see `FieldReader`."""
        for place, number in np.ndenumerate(wanted):
            at = tuple(map(int, np.unravel_index(int(number), self.array.shape[:3])))
            out[place] = np.asarray(self.array.variable[at].data)[window[0]][..., window[1]]
