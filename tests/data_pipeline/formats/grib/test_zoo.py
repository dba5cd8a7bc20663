"""Every real GRIB file is opened correctly, or refused with the correct message."""

import eccodes
import numpy as np
import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import open_ensemble
from data_pipeline.task import Variable

FOLDERS = ("grib_cfgrib_samples", "grib_metview_ens", "grib_earthkit", "grib_gribberish_small")

OPENED = {
    "grib_cfgrib_samples/alternate-scanning.grib": (["2t"], 1, 1, 1),  # every second row backwards
    "grib_cfgrib_samples/era5-levels-members.grib": (["t@500", "t@850", "z@500", "z@850"], 4, 1, 10),
    "grib_cfgrib_samples/fields_with_missing_values.grib": (["2t"], 2, 1, 1),  # a bitmap
    "grib_cfgrib_samples/multi_param_on_multi_dims.grib": (
        [f"{name}@{level}" for name in "tuz" for level in (300, 500, 850, 1000)], 1, 4, 1
    ),
    "grib_cfgrib_samples/regular_gg_pl.grib": (["10u"], 1, 1, 1),  # Gaussian latitudes
    "grib_cfgrib_samples/regular_ll_wrong_increment.grib": (["2t"], 1, 1, 1),  # the edges are right
    "grib_cfgrib_samples/scanning_mode_64.grib": (["skt"], 1, 1, 1),  # south first
    "grib_cfgrib_samples/soil-surface-level-mix.grib": (
        ["2t", "slt", *(f"{name}{k}" for name in ("stl", "swvl") for k in (1, 2, 3, 4))], 1, 1, 1
    ),
    "grib_cfgrib_samples/step_60m.grib": (["2t"], 1, 73, 1),
    "grib_cfgrib_samples/t_analysis_and_fc_0.grib": (["t@1000"], 1, 1, 1),
    "grib_earthkit/ens_none.grib": (["2t"], 1, 1, 1),  # no member
    "grib_earthkit/hdate.grib": (["2t"], 1, 1, 1),  # a reforecast
    "grib_earthkit/rotated_wind_20x20.grib": (["10u", "10v"], 1, 1, 1),  # points
    "grib_earthkit/test_padding.grib": (["2t", "msl"], 1, 1, 1),  # bytes between messages
    "grib_earthkit/test_single_with_missing.grib": (["2t"], 1, 1, 1),
    "grib_gribberish_small/aifs-single-t500.grib2": (["t@500"], 1, 1, 1),  # from 180 degrees eastwards, CCSDS
    "grib_gribberish_small/ecmwf_soil_8vars_tiny.grib1": (
        [f"{name}{k}" for name in ("stl", "swvl") for k in (1, 2, 3, 4)], 1, 1, 1
    ),
    "grib_metview_ens/ml_data.grib": (
        ["lnsp", *(f"t_ml{level}" for level in (1, *range(5, 136, 4), 137))], 1, 1, 1  # model levels
    ),
    "grib_metview_ens/t_time_series.grib": (["t@1000", "z@1000"], 1, 5, 1),
    "grib_metview_ens/t_with_missing.grib": (["t@1000"], 1, 1, 1),
    "grib_metview_ens/z500_ens.grib": (["z@500"], 1, 1, 51),  # control and perturbed, from 50 degrees west
    "grib_metview_ens/ztu_multi_dim.grib": (
        [f"{name}@{level}" for name in "tuz" for level in (500, 700, 850, 1000)], 1, 4, 6
    ),
}  # fmt: skip
"""Variables, and the numbers of starts, lead times and members."""

REFUSED = {
    "grib_cfgrib_samples/era5-levels-corrupted.grib": "is damaged: the message at byte 0 does not end",
    "grib_cfgrib_samples/forecast_monthly_ukmo.grib": "has only 168 of the 4480 fields that belong together",
    "grib_cfgrib_samples/hpa_and_pa.grib": r"has t \(isobaricInPa 10\), which is neither at the surface nor",
    "grib_cfgrib_samples/reduced_gg.grib": "is on the reduced Gaussian grid N48 .* data.archive.grid=0.5",
    "grib_cfgrib_samples/single_gridpoint.grib": "has messages only as 3 x climate mean of 2t, 3 x climate",
    "grib_cfgrib_samples/tp_on_different_grid_resolutions.grib": "has tp on 37 x 72 .* has tp on 46 x 90 points",
    "grib_cfgrib_samples/uv_on_different_levels.grib": "lacks v@400 at init_time",
    "grib_earthkit/O32_global.grib2": "is on the octahedral reduced Gaussian grid O32 .* data.archive.grid=0.5",
    "grib_earthkit/healpix_H8.grib2": "is on the HEALPix grid H8 .* data.archive.grid=0.5",
    "grib_gribberish_small/gfs.t18z.pgrb2.0p25.f186-RH.grib2": r"has r \(isobaricInPa 70\), which is neither",
    "grib_gribberish_small/s2s-pdt9-pdt10-pdt12.grib2": (
        "has messages only as 4 x probability of min_2t, 3 x quantile of min_2t, 1 x ensemble mean of min_2t, .*"
        "which are no forecasts, members or analyses"
    ),
    "grib_metview_ens/fc_storm.grib": "lacks z@850 at init_time 2013-10-25T00:00, lead_time 72",
    "grib_metview_ens/t_n48.grib": "is on the reduced Gaussian grid N48 .* data.archive.grid=0.5",
}

NAMED = {
    "grib_cfgrib_samples/forecast_monthly_ukmo.grib": (["2t:mean"], [744]),
    "grib_cfgrib_samples/hpa_and_pa.grib": (["t@1"], None),
    "grib_cfgrib_samples/uv_on_different_levels.grib": (["u@400", "u@500", "v@500"], None),
    "grib_metview_ens/fc_storm.grib": (["10fg3"], None),
}
"""Variables and lead times that can be read from refused files by name."""


def test_every_file_is_listed(samples):
    there = {f"{name}/{path.name}" for name in FOLDERS for path in (samples / name).iterdir()}
    assert {name for name in there if not name.endswith(".txt")} == {*OPENED, *REFUSED}
    assert {path.name for path in samples.glob("grib_*")} == set(FOLDERS)


def north_first(handle, plain):
    """The latitudes, longitudes and values of a message by ecCodes, sorted by latitude and longitude."""
    lat, lon = (eccodes.codes_get_array(handle, f"{name}itudes") for name in ("lat", "long"))
    if eccodes.codes_get(handle, "scanningMode") & 16:
        # Every second row is backwards; ecCodes returns the columns of the first row.
        lon = lon.reshape(eccodes.codes_get(handle, "Nj"), -1)
        lon[1::2] = lon[1::2, ::-1].copy()
        lon = lon.ravel()
    lon = lon.round(6) % 360
    order = np.lexsort([lon, -lat])
    return lat[order], lon[order], plain.values(handle)[order]


def compare_messages(dataset, path, plain):
    """Compare all messages of a file that are in the dataset; return their number."""
    count = 0
    for handle in plain.handles(path):
        name = eccodes.codes_get(handle, "shortName")
        kind = eccodes.codes_get(handle, "typeOfLevel")
        level = eccodes.codes_get(handle, "level") if kind == "isobaricInhPa" else 0
        eccodes.codes_set(handle, "stepUnits", "h")
        date, time = eccodes.codes_get(handle, "dataDate"), eccodes.codes_get(handle, "dataTime")
        where = {
            "init_time": np.datetime64(f"{date // 10000}-{date // 100 % 100:02}-{date % 100:02}T{time // 100:02}"),
            "lead_time": eccodes.codes_get(handle, "endStep"),
            "number": plain.get(handle, "number", int, 0),
        }
        if kind == "hybrid" and name != "lnsp":
            name = f"{name}_ml{eccodes.codes_get(handle, 'level')}"
        name = {"fcmean": f"{name}_mean"}.get(plain.get(handle, "dataType", str), name)
        if name not in dataset or kind == "isobaricInPa" or (level and level not in dataset.level):
            continue
        if where["lead_time"] not in dataset.lead_time:
            continue
        field = dataset[name] if not level else dataset[name].sel(level=level)
        field = field.sel(where)
        assert field.units == eccodes.codes_get(handle, "units")
        lat, lon = field.latitude.values, field.longitude.values.round(6) % 360
        their_lat, their_lon, values = north_first(handle, plain)
        if "point" in field.dims:
            order = np.lexsort([lon, -lat])
            np.testing.assert_array_equal(field.values[order], values.astype(np.float32))
            np.testing.assert_allclose([lat[order], lon[order]], [their_lat, their_lon], atol=1e-6)
            count += 1
            continue
        order = np.argsort(lon, kind="stable")
        np.testing.assert_array_equal(field.values[:, order].ravel(), values.astype(np.float32))
        if "wrong_increment" not in path.name:  # ecCodes computes coordinates from the increments
            np.testing.assert_allclose(np.repeat(lat, len(lon)), their_lat, atol=2e-3)
            np.testing.assert_allclose(np.tile(lon[order], len(lat)), their_lon, atol=2e-3)
        count += 1
    return count


@pytest.mark.parametrize("name", OPENED)
def test_opened_correctly(samples, plain, name):
    variables, starts, leads, members = OPENED[name]
    dataset = open_ensemble(samples / name, chunks=None)
    sizes = [dataset.sizes[axis] for axis in ("init_time", "lead_time", "number")]
    assert sizes == [starts, leads, members]
    assert set(dataset) == {variable.partition("@")[0] for variable in variables}
    named = open_ensemble(samples / name, [Variable.parse(variable) for variable in variables], chunks=None)
    assert named.sizes == dataset.sizes
    count = compare_messages(dataset.load(), samples / name, plain)
    assert count == len(variables) * starts * leads * members


def test_refused_with_the_file_and_the_reason(samples):
    for name, reason in REFUSED.items():
        with pytest.raises(InputError, match=rf"{name}.*{reason}"):
            open_ensemble(samples / name)


@pytest.mark.parametrize("name", NAMED)
def test_parts_of_refused_files_are_opened_by_name(samples, plain, name):
    variables, leads = NAMED[name]
    dataset = open_ensemble(samples / name, [Variable.parse(v) for v in variables], leads, missing="mask", chunks=None)
    count = compare_messages(dataset.load(), samples / name, plain)
    filled = sum(int(field.notnull().any(("latitude", "longitude")).sum()) for field in dataset.values())
    assert count >= filled > 0
