"""A small archive in GRIB for tests of whole verbs: forecasts with a bias and too little spread, and their truth."""

from datetime import date, timedelta

import numpy as np

from data_pipeline.formats.grib import Encoder
from data_pipeline.grid import Grid

GRID = Grid.regular(9, 14)
STARTS = [date(year, month, 8) for year in range(2000, 2004) for month in range(1, 13)]
OPTIONS = [
    "data=grib", "data.split.train=[2000,2001]", "data.split.val=[2002,2002]", "data.split.test=[2003,2003]",
    "task.name=toy", "task.inputs=[2t,msl]", "task.targets=[2t]", "task.lead_times=[24]",
]  # fmt: skip
KEYS = {
    "centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 1, "class": "od", "expver": "0001",
    "typeOfLevel": "surface",
}  # fmt: skip


def write_archive(folder, members=4):
    """Write `ensemble.grib` and `analysis.grib` of 2 m temperature and pressure, 24 h ahead of `STARTS`."""
    random = np.random.default_rng(0)
    ensemble = Encoder(GRID, **KEYS, type="pf", stream="enfo", numberOfForecastsInEnsemble=members)
    analysis = Encoder(GRID, **KEYS, type="an", stream="oper")
    with (folder / "ensemble.grib").open("wb") as forecasts, (folder / "analysis.grib").open("wb") as truths:
        for start in STARTS:
            valid = int(f"{start + timedelta(days=1):%Y%m%d}")
            for name in ("2t", "msl"):
                likely = 280 + 8 * random.standard_normal(GRID.shape)
                truth = likely + random.standard_normal(GRID.shape)
                truths.write(analysis.encode(truth, shortName=name, dataDate=valid, step=0))
                for number in range(1, members + 1):
                    field = likely + 1 + 0.5 * random.standard_normal(GRID.shape)
                    forecasts.write(
                        ensemble.encode(
                            field, shortName=name, dataDate=int(f"{start:%Y%m%d}"), endStep=24,
                            perturbationNumber=number,
                        )
                    )  # fmt: skip
