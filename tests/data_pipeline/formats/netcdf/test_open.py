"""Layouts of ensembles, analyses and static fields, starting with published data sets."""

from contextlib import nullcontext

import netCDF4
import numpy as np
import pytest
import xarray as xr
from netcdf_parts import START, VALID, K, ramp, variables

from data_pipeline.common.errors import InputError
from data_pipeline.formats.netcdf.file import NetCDFFile
from data_pipeline.formats.open import ensemble_fields, open_analysis, open_ensemble, open_static


def test_wind_and_temperature_by_standard_name_and_height(file):
    """Two heights in one file: each variable names its own in `coordinates`."""
    height, fields = {"units": "m", "standard_name": "height"}, {}
    for name, standard_name, units, own in (
        ("tas", "air_temperature", "K", {"coordinates": "height"}),
        ("uas", "eastward_wind", "m/s", {"coordinates": "height_0"}),
        ("psl", "air_pressure_at_sea_level", "hPa", {}),
    ):
        attributes = {"standard_name": standard_name, "units": units, **own}
        fields[name] = (("time", "lat", "lon"), ramp(2, 4, 6), attributes)
    dataset = open_analysis(file({"time": VALID, "height": ((), 2.0, height), "height_0": ((), 10.0, height)}, fields))
    assert set(dataset) == {"2t", "10u", "msl"}
    np.testing.assert_allclose(dataset.msl, 100 * ramp(2, 4, 6))


def test_the_start_may_be_added_with_xarray(file, tmp_path):
    """The solution in docs/data/netcdf.md: the new coordinate keeps the attributes of `time`, its standard_name too."""
    time = (("time",), [24.0, 48.0, 72.0], {"units": "hours since 2000-01-01", "standard_name": "time"})
    path = file({"time": time}, {"t2m": (("time", "lat", "lon"), ramp(3, 4, 6), K)})
    with xr.open_dataset(path) as d:
        d.assign_coords(init_time=d.time[0].drop_vars("time")).to_netcdf(tmp_path / "out.nc")
    dataset = open_ensemble(tmp_path / "out.nc")
    assert dataset.lead_time.values.tolist() == [0, 24, 48]
    assert dataset.init_time.values.astype("datetime64[h]").astype(str).tolist() == ["2000-01-02T00"]


def test_starts_and_lead_times_along_one_dimension(file):
    """Every field along `time` has its own start and lead time."""
    own = {"units": "hours", "standard_name": "forecast_period"}
    path = file(
        {
            "time": (("time",), [0.0, 24.0, 24.0, 48.0], {"units": "hours since 2000-01-01", "standard_name": "time"}),
            "leadtime": (("time",), [0, 24, 0, 24], own),
        },
        {"t2m": (("time", "lat", "lon"), ramp(4, 4, 6), K)},
    )
    dataset = open_ensemble(path)
    assert dict(dataset.sizes) == {"init_time": 2, "lead_time": 2, "number": 1, "latitude": 4, "longitude": 6}
    np.testing.assert_array_equal(dataset["2t"].values.reshape(4, 4, 6), ramp(4, 4, 6))


def test_members_are_numbered_from_1_or_by_the_digits_of_their_names(file):
    outer = {"forecast_reference_time": START, "step": (("step",), [24], {"units": "hours"})}
    fields = {"t2m": (("step", "member", "lat", "lon"), ramp(1, 3, 4, 6), K)}
    assert open_ensemble(file(outer, fields)).number.values.tolist() == [1, 2, 3]
    named = {**outer, "member": (("member",), np.array(["m02", "m00", "m11"]), {})}
    dataset = open_ensemble(file(named, fields, "named.nc"))
    assert dataset.number.values.tolist() == [0, 2, 11]
    np.testing.assert_array_equal(dataset["2t"][0, 0, 1], ramp(1, 3, 4, 6)[0, 0])
    with pytest.raises(InputError, match=r"its members \(member\) have no numbers; number them"):
        open_ensemble(file({**outer, "member": (("member",), np.array(["a", "b", "c"]), {})}, fields, "letters.nc"))


def test_only_the_selection_is_read(plain, tmp_path, monkeypatch):
    """One start, one member and two rows: no other values are read from the file."""
    fields = ensemble_fields(plain.cfgrib(tmp_path / "a.nc"), variables("2t"), (0, 24, 48))
    sizes = []

    class Watched:
        def __getitem__(self, key):
            values = dataset["t2m"][key]
            sizes.append(values.size)
            return values

    monkeypatch.setattr(NetCDFFile, "open", lambda _: nullcontext({"t2m": Watched()}))
    out = np.empty((1, 1, 2, 6), np.float32)
    with netCDF4.Dataset(tmp_path / "a.nc") as dataset:
        fields.read(fields.cells[1, 2, [2]], out, (slice(1, 3), slice(None)))
    assert sizes == [2 * 6]


@pytest.mark.parametrize(
    ("stored", "grid"),
    [
        ([310.0, 330, 350, 370], [-50.0, -30, -10, 10]),
        ([350.0, 10, 30, 330], [-30.0, -10, 10, 30]),
        ([-50.0, -30, -10, 10], [-50.0, -30, -10, 10]),
        ([200.0, 220, 240, 260], [200.0, 220, 240, 260]),
        ([260.0, 240, 220, 200], [200.0, 220, 240, 260]),
        ([-180.0, -120, -60, 0, 60, 120, 180], [0.0, 60, 120, 180, 240, 300]),  # the last repeats the first
    ],
)
def test_longitudes_start_at_greenwich_or_after_the_widest_gap(plain, tmp_path, stored, grid):
    coordinates = {
        "lat": (("lat",), plain.lat, {"units": "degrees_north"}), "lon": (("lon",), stored, {"units": "degrees_east"})
    }  # fmt: skip
    field = np.tile(np.array(stored) % 360, (4, 1))
    dataset = open_static(plain.write(tmp_path / "a", coordinates, {"lsm": (("lat", "lon"), field, {})}))
    np.testing.assert_array_equal(dataset.longitude, grid)
    np.testing.assert_array_equal(dataset.lsm[0], np.array(grid) % 360)
