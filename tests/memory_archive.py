"""A small archive in memory, to run `evaluate` on: its law is known, and nothing is read from files."""

import signal
import sys
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import pytest
import xarray as xr

from conf import build
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import Grid
from data_pipeline.protocols import Fields
from data_pipeline.task import Task
from data_pipeline.variables.meaning import Meaning
from evaluation import evaluate
from models import reference_emos
from models.corrector import Corrector

GRID = Grid.regular(7, 12)
TASK = Task("t2m", ["2t"], ["2t"], [48])
PROVENANCE = {"train_dates": [["2014-01-01", "2014-12-31"]], "val_dates": [["2015-01-01", "2015-12-31"]], "members": 5}


class MemoryReader:
    """Reads fields from `values` (n, H, W)."""

    grid = GRID

    def __init__(self, values):
        self.values = values

    def read(self, wanted, out, window):
        out[:] = self.values[wanted][..., window[0], :][..., window[1]]


def memory_fields(values, init_times, variables, lead_times):
    """Return the fields of `values` (start, lead, member, H, W), of which every variable is a copy."""
    variables, leads = tuple(variables), tuple(lead_times)
    meanings = tuple(Meaning.stated(variable, leads) for variable in variables)
    cells = np.arange(np.prod(values.shape[:3])).reshape(values.shape[:3])
    cells = cells[:, [{24: 0, 48: 1}.get(lead, 0) for lead in leads], :, None].repeat(len(variables), axis=-1)
    reader, numbers = MemoryReader(values.reshape(-1, *GRID.shape)), tuple(range(1, values.shape[2] + 1))
    return Fields(reader, variables, init_times, leads, numbers, meanings, cells)


class MemoryArchive:
    """An archive of 2014 to 2016; the raw ensemble is 1 K too cold and half as wide as its errors."""

    fingerprint = "0123"
    moments = None
    missing = "error"
    omissions = ()

    def __init__(self, members=5, oracle_years=(2016,)):
        self.rng = np.random.default_rng(0)
        days = np.concatenate([np.datetime64(f"{year}-01-05", "D") + 18 * np.arange(20) for year in (2014, 2015, 2016)])
        self.starts = days.astype("datetime64[s]")
        H, W = GRID.shape
        lead = np.array([24, 48])[None, :, None, None]
        shape = (len(days), 2, H, W)
        self.signal = 280 + 5 * self.rng.normal(size=shape) + 0 * lead
        self.truth = self.signal + self.rng.normal(size=shape)
        self.raw = self.signal[:, :, None] - 1 + 0.5 * self.rng.normal(size=(len(days), 2, members, H, W))
        self.oracle_years, self.members = oracle_years, members
        self.unverified = []

    def check_available(self, task, dates, moments):
        pass

    def ensemble_fields(self, variables, lead_times):
        return memory_fields(self.raw, self.starts, variables, lead_times)

    def analysis_fields(self, variables):
        times = self.starts[:, None] + np.array([24, 48], "timedelta64[h]")
        known = np.ones(times.shape, bool)
        for row, lead in self.unverified:
            known[row, lead] = False
        return memory_fields(self.truth[known][:, None, None], times[known], variables, (0,))

    @cached_property
    def static(self):
        field = np.broadcast_to(np.arange(12) % 2, GRID.shape).astype(np.float32)
        space = {"latitude": list(GRID.latitudes), "longitude": list(GRID.longitudes)}
        return xr.Dataset(dict.fromkeys(("lsm", "z"), (("latitude", "longitude"), field)), space)

    @cached_property
    def oracle(self):
        if not self.oracle_years:
            return None
        mine = np.isin(self.starts.astype("datetime64[Y]").astype(int) + 1970, self.oracle_years)
        draws = self.rng.normal(size=(mine.sum(), 2, 8, *GRID.shape))
        members, starts = self.signal[mine][:, :, None] + draws, self.starts[mine]
        other = MemoryArchive.__new__(MemoryArchive)
        other.__dict__ |= {"starts": self.starts, "truth": self.truth, "unverified": self.unverified}
        other.ensemble_fields = lambda *wanted: memory_fields(members, starts, *wanted)
        other.static = self.static
        return other


def overrides(run_dir, *more):
    years = ["data.split.train=[2014,2014]", "data.split.val=[2015,2015]", "data.split.test=[2016,2016]"]
    return [f"run_dir={run_dir}", "task.inputs=[2t,msl]", *years, *more]


@contextmanager
def evaluating(archive):
    """Give a function that runs the verb like the command line, in this process and on the archive.

    References are EMOS of single cells.
    """
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYDRA_FULL_ERROR", "0")  # the verb sets this variable; it is restored here
        patch.setitem(reference_emos.SPEC, "shared", False)
        patch.setattr(evaluate, "build", lambda node: archive if "ensemble" in node else build(node))

        def run(run_dir, *more):
            patch.setattr(sys, "argv", ["evaluate", *overrides(run_dir, *more)])
            evaluate.main()

        yield run
    signal.signal(signal.SIGTERM, handler)


def untrained_emos(archive, **options):
    """Return an EMOS of the archive's training year that is not fitted, and the samples of that year."""
    data = ForecastDataset(archive, TASK, [2014])
    spec = {"_target_": "models.statistical.emos.EMOS", "shared": False, **options}
    return Corrector(TASK, data.grid, spec, data.static, PROVENANCE), data
