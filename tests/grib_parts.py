"""A small archive in GRIB for tests of whole verbs: forecasts with a bias and too little spread, and their truth."""

from datetime import date, timedelta

import eccodes
import numpy as np

from data_pipeline.grid import Grid
from data_pipeline.writing import Encoder

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


def write_archive(folder, members=4, seed=0, grid=GRID, starts=STARTS):
    """Write `ensemble.grib` and `analysis.grib` of 2 m temperature and pressure, 24 h ahead of each start."""
    random = np.random.default_rng(seed)
    ensemble = Encoder(grid, **KEYS, type="pf", stream="enfo", numberOfForecastsInEnsemble=members)
    analysis = Encoder(grid, **KEYS, type="an", stream="oper")
    with (folder / "ensemble.grib").open("wb") as forecasts, (folder / "analysis.grib").open("wb") as truths:
        for start in starts:
            valid = int(f"{start + timedelta(days=1):%Y%m%d}")
            for name in ("2t", "msl"):
                likely = 280 + 8 * random.standard_normal(grid.shape)
                truth = likely + random.standard_normal(grid.shape)
                truths.write(analysis.encode(truth, shortName=name, dataDate=valid, step=0))
                for number in range(1, members + 1):
                    field = likely + 1 + 0.5 * random.standard_normal(grid.shape)
                    forecasts.write(
                        ensemble.encode(
                            field, shortName=name, dataDate=int(f"{start:%Y%m%d}"), endStep=24,
                            perturbationNumber=number,
                        )
                    )  # fmt: skip


def plain_message(edition, values, bits, scanning=0, west=0, **keys):
    """A message of `values` (H, W) on latitudes from 40 to 30 and 20 degrees of longitude, made by ecCodes alone."""
    handle = eccodes.codes_grib_new_from_samples(f"regular_ll_pl_grib{edition}")
    lat, lon = (40, 30), (west, west + 20)
    around = {
        "Ni": values.shape[1], "Nj": values.shape[0], "scanningMode": scanning, "ijDirectionIncrementGiven": 0,
        "latitudeOfFirstGridPointInDegrees": lat[scanning >> 6 & 1],
        "latitudeOfLastGridPointInDegrees": lat[~scanning >> 6 & 1],
        "longitudeOfFirstGridPointInDegrees": lon[scanning >> 7],
        "longitudeOfLastGridPointInDegrees": lon[1 - (scanning >> 7)], "bitsPerValue": bits,
    }  # fmt: skip
    return packed(handle, values, **around | keys)


def reduced_message(edition, values, **keys):
    """A message on the reduced Gaussian grid N32; NaN is missing."""
    return packed(
        eccodes.codes_grib_new_from_samples(f"reduced_gg_pl_32_grib{edition}"), values, bitsPerValue=24, **keys
    )


def packed(handle, values, **keys):
    """Return a message with these keys and values, and release its handle."""
    keys |= {"missingValue": 1e30, "bitmapPresent": int(np.isnan(values).any())}
    for key, value in keys.items():
        eccodes.codes_set(handle, key, value)
    eccodes.codes_set_double_array(handle, "values", np.where(np.isnan(values), 1e30, values).ravel())
    message = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return message


def section(message, number, start=0):
    """Return the position of a section of the GRIB2 message that begins at `start`."""
    at = start + 16
    while message[at + 4] != number:
        at += int.from_bytes(message[at : at + 4], "big")
    return at


def write_reduced_archive(folder, members=4):
    """Write `ensemble.grib` on N32 and `analysis.grib` on `GRID`, both of the same waves in latitude and longitude."""
    random = np.random.default_rng(0)
    kind = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 1, "type": "pf", "stream": "enfo"}
    analysis = Encoder(GRID, **KEYS, type="an", stream="oper")
    handle = eccodes.codes_grib_new_from_samples("reduced_gg_pl_32_grib1")
    reduced = [np.radians(eccodes.codes_get_array(handle, f"{axis}itudes")) for axis in ("lat", "long")]
    regular = [np.radians(each) for each in np.meshgrid(GRID.latitudes, GRID.longitudes, indexing="ij")]
    with (folder / "ensemble.grib").open("wb") as forecasts, (folder / "analysis.grib").open("wb") as truths:
        for start in STARTS:
            height, shift = 10 * random.standard_normal(), random.uniform(0, 2 * np.pi)

            def wave(latitude, longitude, height=height, shift=shift):
                return 280 + height * np.cos(latitude) * np.cos(longitude - shift)

            valid = int(f"{start + timedelta(days=1):%Y%m%d}")
            truths.write(analysis.encode(wave(*regular), shortName="2t", dataDate=valid, step=0))
            for number in range(1, members + 1):
                field = wave(*reduced) + 1 + random.standard_normal()
                keys = {"typeOfLevel": "surface", "shortName": "2t", "dataDate": int(f"{start:%Y%m%d}")}
                forecasts.write(reduced_message(1, field, **kind, **keys, step=24, number=number))
