"""Files and options that are refused, and the messages."""

from contextlib import nullcontext

import netCDF4
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netcdf_parts import START, VALID, K, ramp, variables

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say_once
from data_pipeline.formats.netcdf.file import NetCDFFile, expected_size
from data_pipeline.formats.open import ensemble_fields, open_analysis, open_ensemble, open_static

SIZES = {"time": 2, "step": 2, "depth": 3, "level": 3, "lev": 3, "plev": 2, "y": 2, "x": 3, "rlat": 2, "rlon": 3}
NORTH, EAST = {"units": "degrees_north"}, {"units": "degrees_east"}


def when(units, values=(1.0, 2.0), name="time", dimensions=("time",), **own):
    return {name: (dimensions, np.array(values), {"units": units, **own})}


DAYS, VALID_TIME = "days since 2000-01-01", {"time": VALID}
FORECAST, A_STEP = {"forecast_reference_time": START}, {"name": "step", "dimensions": ("step",)}
A_TIME = {"dimensions": (), "standard_name": "time"}
LEVELS = {"time": VALID, "level": (("level",), [850, 500, 300], {"units": "hPa"})}
ANALYSES = [
    (VALID_TIME, "time", {"units": "J"}, r"file.nc \(t2m\) is in 'J', GRIB has 2t in K; convert its"),
    (VALID_TIME, "time", {}, r"\(t2m\) has no units, GRIB has 2t in K; state the units .*{t2m: 2t in K}"),
    (VALID_TIME, "time", {**K, "standard_name": "eastward_wind"}, "t2m may be 2t .* or u .*; choose one"),
    (VALID_TIME, "time depth", K, r"its dimension depth \(3 values\) is not recognised as time, member"),
    (LEVELS, "time level", K, r"2t lies at the surface but has 3 levels along level; select one, .* ncks -d level,0"),
    ({"time": VALID, "lev": (("lev",), [1, 2, 3], {})}, "time lev", K, "lev may count model levels; if so, state"),
    ({}, "", K, r"\(t2m\) has no time; add it, for instance with cdo setdate"),
    ({}, "time", K, r"its dimension time \(2 values\) is not recognised as .*, or add its coordinate"),
    (when(DAYS, calendar="noleap"), "time", K, "has the calendar 'noleap', whose dates do not match real weather"),
    (when("years since 2000-01-01"), "time", K, "'years since 2000-01-01', and a year has no fixed length"),
    (when("day as %Y%m%d.%f", standard_name="time"), "time", K, r"units 'day as %Y%m%d.%f', not days, .* cdo -r copy"),
    (when("days since the flood"), "time", K, "'days since the flood', which cannot be decoded"),
    (when(DAYS, (1.0, np.nan)), "time", K, "time has missing values; every field needs a time"),
    (when(DAYS, (1, -9), missing_value=-9), "time", K, "time has missing values; every field needs a time"),
    (
        {**when(DAYS, 1.0, "a", **A_TIME), **when(DAYS, 2.0, "b", **A_TIME)},
        "",
        K,
        "a and b could each be its time; .*-v b",
    ),
]
FORECASTS = [
    (VALID_TIME, "time", K, "has valid times but no start of the forecasts; add"),
    ({**when(DAYS), "step": ((), 24.0, {"units": "hours"})}, "time", K, "time may be the start or the valid time of"),
    (
        {**FORECAST, **when("fortnights", **A_STEP)},
        "step",
        K,
        "units .fortnights.; convert lead times to days, hours, min",
    ),
    ({**FORECAST, **when("seconds", **A_STEP)}, "step", K, "step has lead times that are not whole minutes"),
]


@pytest.mark.parametrize(
    ("opener", "coordinates", "dimensions", "own", "sentence"),
    [*((open_analysis, *row) for row in ANALYSES), *((open_ensemble, *row) for row in FORECASTS)],
)
def test_variables_that_are_not_read_are_refused_in_one_sentence(file, opener, coordinates, dimensions, own, sentence):
    dimensions = dimensions.split()
    values = ramp(*(SIZES[name] for name in dimensions), 4, 6)
    path = file(coordinates, {"t" if "lev" in coordinates else "t2m": ((*dimensions, "lat", "lon"), values, own)})
    with pytest.raises(InputError, match=sentence) as raised:
        opener(path)
    assert "\n" not in str(raised.value)


def test_the_coordinate_of_the_dimension_and_standard_names_decide_between_times(file):
    units = {"units": "hours since 2000-01-01"}
    fields = {"t2m": (("time", "lat", "lon"), ramp(2, 4, 6), K)}
    others = {**when(DAYS, name="clock", standard_name="time"), **when("hours since 2000-01-01", name="hour")}
    times = open_analysis(file({"time": VALID, **others}, fields)).time.values
    assert times.astype("datetime64[D]").astype(str).tolist() == ["2000-01-02", "2000-01-03"]
    for name, first in (("forecast_reference_time", "2000-01-01"), ("time", "1999-12-31")):
        coordinates = {"time": (("time",), [0.0, 24.0], {**units, "standard_name": name})}
        path = file({**coordinates, "step": ((), 24.0, {"units": "hours"})}, fields, f"{name}.nc")
        assert str(open_ensemble(path).init_time.values[0])[:10] == first


@pytest.mark.parametrize(
    ("y", "x", "axis"), [("rlat", "rlon", {"units": "degrees", "standard_name": "grid_"}), ("y", "x", {"units": "m"})]
)
def test_projected_coordinates_without_a_grid_mapping_are_refused(plain, tmp_path, y, x, axis):
    coordinates = {}
    for name, ending in ((y, "latitude"), (x, "longitude")):
        own = {key: text + ending * text.endswith("_") for key, text in axis.items()}
        coordinates[name] = ((name,), np.arange(1.0, SIZES[name] + 1), own)
    path = plain.write(tmp_path / "a.nc", coordinates, {"lsm": ((y, x), np.zeros((2, 3)), {})})
    with pytest.raises(InputError, match=rf"\(lsm\): it is on .* projection unknown \({y} and {x}\) .*; add latit"):
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
    coordinates = {"lon": (("lon",), plain.lon, EAST)} | ({"lat": (("lat",), lat, NORTH)} if lat else {})
    path = plain.write(tmp_path / "a.nc", coordinates, {"lsm": (("lat", "lon"), ramp(4, 6), {})})
    with pytest.raises(InputError, match=rf"a.nc \(lsm\): {sentence}"):
        open_static(path)


def test_different_grids_and_units_are_refused(plain, file, tmp_path):
    """A variable that is not in the table has the units of the files, which must agree."""
    one = file({}, {"lsm": (("lat", "lon"), ramp(4, 6), {})})
    coordinates = {"lat": (("lat",), plain.lat[:3], NORTH), "lon": (("lon",), plain.lon, EAST)}
    two = plain.write(tmp_path / "two.nc", coordinates, {"sd": (("lat", "lon"), ramp(3, 6), {"units": "m"})})
    with pytest.raises(InputError, match=r"file.nc \(lsm\) is on 4 x 6 .*two.nc \(sd\)\S* on 3 x 6 .*on one grid"):
        open_static([one, two])
    paths = []
    for k, units in enumerate(("kg", "g")):
        smoke = {"smoke": (("lat", "lon"), ramp(4, 6), {"units": units})}
        paths.append(file({"time": ((), 24.0 * k, VALID[2])}, smoke, f"{units}.nc"))
    with pytest.raises(InputError, match="has smoke in g and in kg; select files with the same units"):
        open_analysis(paths)
    assert open_analysis(paths[0]).smoke.attrs == {"units": "kg", "long_name": "smoke"}


@pytest.mark.parametrize("file_format", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "NETCDF4"])
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
    fields.read(fields.cells[0, 0], out)
    plain.cfgrib(tmp_path / "b.nc", starts=(0,)).rename(tmp_path / "a.nc")
    with pytest.raises(InputError, match=r"a.nc has changed since it was opened; run again when it is complete"):
        fields.read(fields.cells[0, 0], out)


def test_damaged_values_are_reported(plain, tmp_path, monkeypatch):
    dataset = open_ensemble(plain.cfgrib(tmp_path / "a.nc"), chunks=None)

    class Broken:
        def __getitem__(self, key):
            raise RuntimeError("NetCDF: HDF error")

    monkeypatch.setattr(NetCDFFile, "open", lambda _: nullcontext({"t2m": Broken()}))
    with pytest.raises(InputError, match=r"a.nc is damaged: the values of t2m cannot be read \(NetCDF: HDF error\)"):
        dataset.load()


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


def test_summaries_beside_the_members_are_counted(file, capsys):
    """Mean and spread of 2t are no members; the mean of msl is nobody's concern here."""
    over, fields = {"cell_methods": "member: mean"}, {"t2m": (("time", "member", "lat", "lon"), ramp(2, 2, 4, 6), K)}
    for name, own in (
        ("mean", {"units": "K", "short_name": "2t", **over}),
        ("spread", {"units": "K", "short_name": "2t", "GRIB_dataType": "es"}),
        ("pressure", {"units": "Pa", "short_name": "msl", **over}),
    ):
        fields[name] = (("time", "lat", "lon"), ramp(2, 4, 6), own)
    members = {"member": (("member",), [0, 1], {"standard_name": "realization"})}
    path = file({"time": VALID, **FORECAST, **members}, fields)
    say_once.cache_clear()
    np.testing.assert_array_equal(open_ensemble(path, ["2t"])["2t"][0], ramp(2, 2, 4, 6))
    assert capsys.readouterr().err == (
        f"warning: {path}: left out 2 variables of 2t, because {path} (mean): it is the mean over members "
        "(cell_methods 'member: mean'), no member of an ensemble\n"
    )


# The expected size of a classic file against the position of its last value

FORMATS = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA")
KINDS = ("i1", "i2", "i4", "f4", "f8")


@settings(max_examples=25)
@given(
    st.sampled_from(FORMATS),
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from(KINDS), st.booleans(), st.integers(0, 2)), min_size=1, max_size=4),
    st.dictionaries(st.text("abc", min_size=1, max_size=5), st.text(max_size=9), max_size=3),
)
def test_the_last_value_ends_the_file(tmp_path_factory, file_format, records, variables, attributes):
    """No value has a zero byte, so the last non-zero byte of the file belongs to a value or its padding."""
    path = tmp_path_factory.mktemp("classic") / "file.nc"
    with netCDF4.Dataset(path, "w", format=file_format) as file:
        file.setncatts({name: text or "-" for name, text in attributes.items()})
        file.createDimension("record", None)
        file.createDimension("x", 3)
        file.createDimension("y", 2)
        for k, (kind, recorded, dimensions) in enumerate(variables):
            shape = (("record",) if recorded else ()) + ("x", "y")[:dimensions]
            variable = file.createVariable(f"v{k}", kind, shape)
            value = np.frombuffer(b"\x7e" * np.dtype(kind).itemsize, kind)[0]
            sizes = [records if name == "record" else len(file.dimensions[name]) for name in shape]
            variable[...] = np.full(sizes, value)
    content = path.read_bytes()
    has_values = any(not recorded or (recorded and records) for _, recorded, _ in variables)
    if has_values:
        # Padding to four bytes need not be zero.
        assert 0 <= len(content.rstrip(b"\0")) - expected_size(path) < 4
    else:
        assert expected_size(path) <= len(content)
