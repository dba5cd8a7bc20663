"""Parts of NetCDF files that several tests write: coordinates of a single time, values all different."""

import numpy as np

from data_pipeline.task import Variable

K = {"units": "K"}
START = ((), 24.0, {"units": "hours since 2000-01-01", "standard_name": "forecast_reference_time"})
VALID = (("time",), [24.0, 48.0], {"units": "hours since 2000-01-01", "standard_name": "time"})


def variables(*names):
    return [Variable.parse(name) for name in names]


def ramp(*shape):
    """Return values that are all different."""
    return 250 + np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def read(fields, init=0, lead=0):
    """Return a forecast or an analysis, (member, channel, H, W)."""
    out = np.empty((len(fields.numbers), len(fields.variables), *fields.grid.shape))
    fields.read(fields.cells[init, lead], out)
    return out
