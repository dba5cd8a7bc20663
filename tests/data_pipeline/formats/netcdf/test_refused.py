"""Files and options that are refused, and the messages."""

import netCDF4
import numpy as np
import pytest
from netcdf_parts import START, VALID, K, ramp, variables

from data_pipeline.common.errors import InputError
from data_pipeline.formats.netcdf import is_netcdf
from data_pipeline.formats.open import analysis_fields, ensemble_fields, open_analysis, open_ensemble, open_static


@pytest.mark.parametrize(
    ("coordinates", "dimensions", "own", "sentence"),
    [
        ({"time": VALID}, ("time",), {"units": "J"}, r"file.nc \(t2m\) is in 'J', GRIB has 2t in K; convert its"),
        ({"time": VALID}, ("time",), {}, r"\(t2m\) has no units, GRIB has 2t in K; state the units .*{t2m: 2t in K}"),
        (
            {"time": VALID}, ("time",), {**K, "standard_name": "eastward_wind"},
            "t2m may be 2t by its name or u by its standard_name eastward_wind; choose one, for inst",
        ),
        ({"time": VALID}, ("time", "depth"), K, r"its dimension depth \(3 values\) is not recognised as time, member"),
        (
            {"time": VALID, "level": (("level",), [850, 500, 300], {"units": "hPa"})}, ("time", "level"), K,
            r"2t lies at the surface but has 3 levels along level; select one, for instance with ncks -d level,0",
        ),
        ({"time": VALID, "lev": (("lev",), [1, 2, 3], {})}, ("time", "lev"), K, "lev has model levels, which are"),
        ({}, (), K, r"\(t2m\) has no time; add it, for instance with cdo setdate"),
        ({}, ("time",), K, r"its dimension time \(2 values\) is not recognised as .*, or add its coordinate"),
        (
            {"time": (("time",), [1.0, 2], {"units": "days since 2000-01-01", "calendar": "noleap"})}, ("time",), K,
            "time has the calendar 'noleap', whose dates do not match real weather",
        ),
        (
            {"time": (("time",), [1.0, 2], {"units": "years since 2000-01-01"})}, ("time",), K,
            "'years since 2000-01-01', and a year has no fixed length",
        ),
        (
            {"time": (("time",), [2.0e7, 2.1e7], {"units": "day as %Y%m%d.%f", "standard_name": "time"})}, ("time",), K,
            r"time has the units 'day as %Y%m%d.%f', not days, hours, .* cdo -r copy",
        ),
        (
            {"time": (("time",), [1.0, 2], {"units": "days since the flood"})}, ("time",), K,
            "'days since the flood', which cannot be decoded",
        ),
        (
            {"time": (("time",), [1.0, np.nan], {"units": "days since 2000-01-01"})}, ("time",), K,
            "time has missing values; every field needs a time",
        ),
        (
            {"time": (("time",), np.array([1, -9]), {"units": "days since 2000-01-01", "missing_value": -9})},
            ("time",), K, "time has missing values; every field needs a time",
        ),
        (
            {"time": VALID, "clock": (("time",), [1.0, 2], {"units": "days since 2000-01-01", "standard_name": "time"}),
             "hour": (("time",), [1.0, 2], {"units": "hours since 2000-01-01", "standard_name": "time"})}, ("time",),
            K, None,
        ),
        (
            {"a": ((), 1.0, {"units": "days since 2000-01-01", "standard_name": "time"}),
             "b": ((), 2.0, {"units": "days since 2000-01-01", "standard_name": "time"})}, (), K,
            r"\(t2m\): a and b could each be its time; list one in its attribute coordinates, .* ncks -C -x -v b",
        ),
    ],
)  # fmt: skip
def test_unsupported_variables_are_refused_in_one_sentence(file, coordinates, dimensions, own, sentence):
    size = {"time": 2, "depth": 3, "level": 3, "lev": 3}
    name = "t" if "lev" in coordinates else "t2m"
    shape = [size[dimension] for dimension in dimensions]
    path = file(coordinates, {name: ((*dimensions, "lat", "lon"), ramp(*shape, 4, 6), own)})
    if sentence is None:  # the dimension coordinate takes precedence
        assert open_analysis(path).time.values.astype("datetime64[D]").astype(str).tolist() == [
            "2000-01-02",
            "2000-01-03",
        ]
        return
    with pytest.raises(InputError, match=sentence) as raised:
        open_analysis(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("lead", "sentence"),
    [
        ({"units": "months"}, "step has the units 'months'; convert lead times to days, hours, minutes or seconds"),
        ({"units": "seconds"}, "step has lead times that are not whole minutes"),
    ],
)
def test_unsupported_lead_times(file, lead, sentence):
    path = file(
        {"forecast_reference_time": START, "step": (("step",), [1.0, 2.0], lead)},
        {"t2m": (("step", "lat", "lon"), ramp(2, 4, 6), K)},
    )
    with pytest.raises(InputError, match=sentence):
        open_ensemble(path)


def test_an_ambiguous_time_is_refused(file):
    units = {"units": "hours since 2000-01-01"}
    fields = {"t2m": (("time", "lat", "lon"), ramp(2, 4, 6), K)}
    lead = ((), 24.0, {"units": "hours"})
    path = file({"time": (("time",), [0.0, 24.0], units), "step": lead}, fields)
    with pytest.raises(InputError, match="time may be the start or the valid time of forecasts"):
        open_ensemble(path)
    for name, first in (("forecast_reference_time", "2000-01-01"), ("time", "1999-12-31")):
        coordinates = {"time": (("time",), [0.0, 24.0], {**units, "standard_name": name}), "step": lead}
        start = open_ensemble(file(coordinates, fields, f"{name}.nc")).init_time.values[0]
        assert str(start)[:10] == first


def test_analyses_are_not_opened_as_forecasts(file):
    path = file({"time": VALID}, {"t2m": (("time", "lat", "lon"), ramp(2, 4, 6), K)})
    with pytest.raises(InputError, match="has valid times but no start of the forecasts; add"):
        open_ensemble(path)
    assert analysis_fields(path, variables("2t")).numbers == (0,)


@pytest.mark.parametrize(
    ("coordinates", "dimensions"),
    [
        (
            {"rlat": (("rlat",), [1.0, 2], {"standard_name": "grid_latitude", "units": "degrees"}),
             "rlon": (("rlon",), [1.0, 2, 3], {"standard_name": "grid_longitude", "units": "degrees"})},
            ("rlat", "rlon"),
        ),
        ({"y": (("y",), [1.0, 2], {"units": "m"}), "x": (("x",), [1.0, 2, 3], {"units": "m"})}, ("y", "x")),
    ],
)  # fmt: skip
def test_projected_coordinates_without_a_grid_mapping_are_refused(plain, tmp_path, coordinates, dimensions):
    path = plain.write(tmp_path / "a.nc", coordinates, {"lsm": (dimensions, np.zeros((2, 3)), {})})
    y, x = dimensions
    with pytest.raises(InputError, match=rf"\(lsm\): it is on .* projection unknown \({y} and {x}\) .*; add latitudes"):
        open_static(path)


@pytest.mark.parametrize(
    ("lat", "sentence"),
    [
        ([10.0, 30.0, 20.0, 0.0], "its latitudes neither increase nor decrease monotonically"),
        ([10.0, 20.0, np.nan, 30.0], "its latitudes or longitudes have missing values"),
        ([100.0, 80.0, 60.0, 40.0], r"latitudes must lie within \[-90, 90\]"),
        (None, "its dimension lat has no coordinate variable; add it"),
    ],
)
def test_coordinates_that_are_not_a_grid(plain, tmp_path, lat, sentence):
    coordinates = {"lon": (("lon",), plain.lon, {"units": "degrees_east"})}
    if lat is not None:
        coordinates["lat"] = (("lat",), lat, {"units": "degrees_north"})
    path = plain.write(tmp_path / "a.nc", coordinates, {"lsm": (("lat", "lon"), ramp(4, 6), {})})
    with pytest.raises(InputError, match=rf"a.nc \(lsm\): {sentence}"):
        open_static(path)


def test_different_grids_are_refused(plain, file, tmp_path):
    one = file({}, {"lsm": (("lat", "lon"), ramp(4, 6), {})})
    coordinates = {
        "lat": (("lat",), plain.lat[:3], {"units": "degrees_north"}),
        "lon": (("lon",), plain.lon, {"units": "degrees_east"}),
    }
    two = plain.write(tmp_path / "two.nc", coordinates, {"sd": (("lat", "lon"), ramp(3, 6), {"units": "m"})})
    with pytest.raises(InputError, match=r"file.nc \(lsm\) is on 4 x 6 .*two.nc \(sd\)\S* on 3 x 6 .*on one grid"):
        open_static([one, two])


def test_a_repeated_field_needs_equal_values(file, tmp_path):
    fields = {"t2m": (("time", "lat", "lon"), ramp(2, 4, 6), K)}
    one = file({"time": VALID}, fields)
    same = file({"time": VALID}, fields, "same.nc")
    assert open_analysis([one, same]).sizes["time"] == 2
    other = file({"time": VALID}, {"t2m": (("time", "lat", "lon"), ramp(2, 4, 6) + 1, K)}, "other.nc")
    with pytest.raises(InputError, match=r"file.nc \(t2m at time 0\) and .*other.nc \(t2m at time 0\) both hold 2t"):
        open_analysis([one, other])


def test_a_sparse_cube_is_refused_before_memory_is_allocated(file):
    units = {"units": "hours since 2000-01-01"}
    paths = []
    for k in range(5):
        start = ((), 7.0 * k, {**units, "standard_name": "forecast_reference_time"})
        valid = ((), 10.0 * k, {**units, "standard_name": "time"})
        fields = {"t2m": (("lat", "lon"), ramp(4, 6), K)}
        paths.append(file({"time": valid, "forecast_reference_time": start}, fields, f"{k}.nc"))
    with pytest.raises(InputError, match=r"has only 5 of the 25 fields that belong together .*: 80% are missing"):
        open_ensemble(paths)


def test_different_units_are_refused(file):
    """A variable that is not in the table has the units of the files, which must agree."""
    paths = [
        file(
            {"time": ((), 24.0 * k, VALID[2])}, {"smoke": (("lat", "lon"), ramp(4, 6), {"units": units})}, f"{units}.nc"
        )
        for k, units in enumerate(("kg", "g"))
    ]
    with pytest.raises(InputError, match="has smoke in g and in kg; select files with the same units"):
        open_analysis(paths)
    assert open_analysis(paths[0]).smoke.attrs == {"units": "kg", "long_name": "smoke"}


@pytest.mark.parametrize("file_format", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4"])
def test_a_file_that_is_cut_off_is_refused(file, file_format):
    """The NetCDF library reads zeros where a classic file has been cut off."""
    path = file({"time": VALID}, {"t2m": (("time", "lat", "lon"), ramp(2, 4, 6), K)}, file_format=file_format)
    assert open_analysis(path).sizes["time"] == 2
    whole = path.read_bytes()
    last = whole.rfind(np.array(297, "<f4" if file_format == "NETCDF4" else ">f4").tobytes())
    for length in (last + 3, last // 2, 20):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"file.nc (is cut off|\().*fetch the file again"):
            open_analysis(path)


def test_a_file_that_changed_after_opening_is_not_read(plain, tmp_path):
    fields = ensemble_fields(plain.cfgrib(tmp_path / "a.nc"), variables("2t"), (0,))
    out = np.empty((3, 1, 4, 6))
    fields.read(0, 0, out)
    plain.cfgrib(tmp_path / "b.nc", starts=(0,)).rename(tmp_path / "a.nc")
    with pytest.raises(InputError, match=r"a.nc has changed since it was opened; run again when it is complete"):
        fields.read(0, 0, out)


def test_damaged_values_are_reported(plain, tmp_path, monkeypatch):
    dataset = open_ensemble(plain.cfgrib(tmp_path / "a.nc"), chunks=None)

    def broken(*_):
        raise RuntimeError("NetCDF: HDF error")

    monkeypatch.setattr("data_pipeline.formats.netcdf.reader._variable", broken)
    with pytest.raises(InputError, match=r"a.nc is damaged: the values of t2m cannot be read \(NetCDF: HDF error\)"):
        dataset.load()


def test_files_that_are_not_netcdf(plain, tmp_path):
    first = plain.cfgrib(tmp_path / "a.nc")
    (tmp_path / "text").write_text("not a forecast")
    (tmp_path / "empty").write_text("")
    for name, found in (("text", "text, not NetCDF; name a file of fields"), ("empty", "empty; fetch the file again")):
        assert not is_netcdf(tmp_path / name)
        with pytest.raises(InputError, match=f"{name} is {found}"):
            open_analysis([first, tmp_path / name])
    with pytest.raises(InputError, match=r"cannot read .*none \(No such file"):
        is_netcdf(tmp_path / "none")


def test_groups_are_not_read(tmp_path):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createGroup("forecast")
    with pytest.raises(
        InputError, match=r"keeps its variables in groups \(forecast\), which are not read; extract one"
    ):
        open_analysis(tmp_path / "a.nc")


def test_wrong_options(plain, tmp_path):
    path = plain.cfgrib(tmp_path / "a.nc")
    with pytest.raises(InputError, match="missing must be error or mask, got 'skip'"):
        open_ensemble(path, missing="skip")
    with pytest.raises(InputError, match="chunks must be auto or None, got 'many'"):
        open_ensemble(path, chunks="many")
    with pytest.raises(InputError, match="'2 t' is not a GRIB shortName"):
        open_ensemble(path, names={"t2m": "2 t"})


def test_fields_on_levels_are_not_static(plain, tmp_path):
    path = plain.cfgrib(tmp_path / "a.nc", {"t": K}, levels=(850, 500))
    with pytest.raises(InputError, match=r"a.nc has no fields at the surface, only t@500, t@850; select other files"):
        open_static(path)


def test_levels_of_half_a_hectopascal_cannot_be_selected(file):
    plev = (("plev",), [85000.0, 50.0], {"units": "Pa"})
    path = file({"time": VALID, "plev": plev}, {"t": (("time", "plev", "lat", "lon"), ramp(2, 2, 4, 6), K)})
    np.testing.assert_array_equal(open_analysis(path, variables("t@850")).t[:, 0], ramp(2, 2, 4, 6)[:, 0])
    with pytest.raises(InputError, match="has t on levels that are not whole numbers of hPa; select the variables"):
        open_analysis(path)
    with pytest.raises(InputError, match=r"\(t\) has its levels along plev; write data.archive.variable_names={t: t}"):
        open_analysis(path, names={"t": "t@850"})
