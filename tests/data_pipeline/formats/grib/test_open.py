import pickle
import shutil

import dask.array
import eccodes
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import BUDGET
from data_pipeline.formats.datasets import select_variable
from data_pipeline.formats.grib import Encoder, reader
from data_pipeline.formats.open import open_analysis, open_ensemble, open_static
from data_pipeline.grid import Grid
from data_pipeline.task import Variable

PACKING = 2e-3
"""Largest packing error of the test files."""


def variables(*names):
    return [Variable.parse(name) for name in names]


def cfgrib(path, **keys):
    return xr.open_dataset(path, engine="cfgrib", backend_kwargs={"indexpath": "", "filter_by_keys": keys})


def analysis(path, names, times, value, **keys):
    """Write analyses like ERA5."""
    encoder = Encoder(Grid.regular(5, 8), **{"class": "ea", "type": "an", "stream": "oper", "expver": "0001"})
    with path.open("wb") as file:
        for name in names:
            variable = Variable.parse(name)
            level = "isobaricInhPa" if variable.level else "surface"
            place = {"shortName": variable.name, "typeOfLevel": level, "level": variable.level}
            for time in times:
                date, hour = divmod(time, 100)
                file.write(encoder.encode(value(name, time), **place, dataDate=date, dataTime=hour * 100, **keys))
    return path


# Dimensions, coordinates and values


def test_dimensions_coordinates_and_values_of_an_ens10_file(writer, tmp_path):
    names = ("z@500", "t@500", "z@850", "t@850", "2t")
    path = writer.forecast(tmp_path / "output.20180104", names)
    dataset = open_ensemble(path)
    assert dict(dataset.sizes) == {
        "init_time": 2, "lead_time": 3, "number": 3, "level": 2, "latitude": 5, "longitude": 8
    }  # fmt: skip
    assert dataset.t.dims == ("init_time", "lead_time", "number", "level", "latitude", "longitude")
    assert dataset["2t"].dims == ("init_time", "lead_time", "number", "latitude", "longitude")
    assert list(dataset.init_time.values.astype("datetime64[D]").astype(str)) == ["1998-01-04", "1999-01-04"]
    assert dataset.lead_time.values.tolist() == [0, 24, 48]
    assert dataset.number.values.tolist() == [1, 2, 3]
    assert dataset.level.values.tolist() == [850, 500]
    assert [dataset[name].dtype.kind for name in ("lead_time", "number", "level")] == ["i"] * 3
    assert dataset.t.attrs == {"units": "K", "long_name": "Temperature"}
    np.testing.assert_allclose(dataset.latitude, writer.grid.latitudes)
    for name in names:
        variable = Variable.parse(name)
        field = select_variable(dataset, variable)
        assert field.dtype == np.float32
        for i, year in enumerate((1998, 1999)):
            for j, lead in enumerate((0, 24, 48)):
                for k, number in enumerate((1, 2, 3)):
                    value = writer.value(variable, year, lead, number)
                    np.testing.assert_allclose(field[i, j, k], value, atol=PACKING)


def test_an_ens10_file_equals_cfgrib(writer, tmp_path):
    path = writer.forecast(tmp_path / "output.pl.20180104", ("z@500", "t@500", "z@850", "t@850"))
    ours, theirs = open_ensemble(path), cfgrib(path)
    assert dict(theirs.sizes) == {
        "number": 3, "time": 2, "step": 3, "isobaricInhPa": 2, "latitude": 5, "longitude": 8
    }  # fmt: skip
    names = {"time": "init_time", "step": "lead_time", "isobaricInhPa": "level"}
    theirs = theirs.rename(names).transpose(*ours.t.dims)
    for name in ("init_time", "number", "level"):
        np.testing.assert_array_equal(ours[name].values, theirs[name].values)
    np.testing.assert_array_equal(ours.lead_time.values, theirs.lead_time.values / np.timedelta64(1, "h"))
    for name in ("z", "t"):
        np.testing.assert_array_equal(ours[name].values, theirs[name].values)


REAL = {
    "grib_cfgrib_samples/era5-levels-members.grib": {},
    "grib_metview_ens/ztu_multi_dim.grib": {},
    "grib_cfgrib_samples/multi_param_on_multi_dims.grib": {},
    "grib_metview_ens/t_time_series.grib": {},
    "grib_cfgrib_samples/fields_with_missing_values.grib": {},
    "grib_earthkit/hdate.grib": {},
    "grib_earthkit/ens_none.grib": {},
    "grib_earthkit/test_padding.grib": {},
    "grib_cfgrib_samples/scanning_mode_64.grib": {},
    "grib_cfgrib_samples/step_60m.grib": {},
    "grib_cfgrib_samples/soil-surface-level-mix.grib": {"typeOfLevel": "depthBelowLandLayer", "level": 0},
}


@pytest.mark.parametrize("name", REAL)
def test_real_files_equal_cfgrib(samples, name):
    ours, theirs = open_ensemble(samples / name, chunks=None), cfgrib(samples / name, **REAL[name])
    compared = 0
    for field in theirs.values():
        shown = ours[field.attrs["GRIB_shortName"]]
        assert shown.attrs["units"] == field.attrs["GRIB_units"]
        present = {"time", "step", "number", "isobaricInhPa"} & set(field.coords)
        field = field.expand_dims([name for name in present if name not in field.dims])
        for position in np.ndindex(*(field.sizes[name] for name in present)):
            one = field.isel(dict(zip(present, position, strict=True)))
            where = {"init_time": one.time.values, "lead_time": int(one.step.values / np.timedelta64(1, "h"))}
            where |= {"number": int(one.number)} if "number" in one.coords else {}
            where |= {"level": int(one.isobaricInhPa)} if "level" in shown.dims else {}
            mine = shown.sel(where).squeeze().sortby("latitude")
            np.testing.assert_array_equal(mine.values, one.sortby("latitude").values)
            compared += 1
    assert compared


def test_era5_members_have_the_published_mean(samples):
    dataset = open_ensemble(samples / "grib_cfgrib_samples" / "era5-levels-members.grib")
    assert float(dataset.t.astype(float).mean()) == pytest.approx(262.9214, abs=5e-5)
    assert float(dataset.t.astype(float).std("number", ddof=0).mean()) == pytest.approx(0.2487, abs=0.02)


def test_control_and_perturbed_forecasts_are_one_ensemble(samples):
    dataset = open_ensemble(samples / "grib_metview_ens" / "z500_ens.grib", variables("z@500"))
    assert dataset.number.values.tolist() == list(range(51))
    means = dataset.z.astype(float).mean(("latitude", "longitude")).squeeze()
    assert float(means[1:].mean()) == pytest.approx(56249.97, abs=0.05)
    assert float(means[0]) == pytest.approx(56268.82, abs=0.05)
    assert dataset.longitude.values[[0, -1]].tolist() == [-50, 20]


def test_a_hindcast_has_the_start_of_its_weather(samples):
    dataset = open_ensemble(samples / "grib_earthkit" / "hdate.grib")
    assert str(dataset.init_time.values[0])[:10] == "2021-06-15"
    assert dataset.number.values.tolist() == [2]


def test_missing_values_are_nan(samples):
    dataset = open_ensemble(samples / "grib_cfgrib_samples" / "fields_with_missing_values.grib")
    assert np.isnan(dataset["2t"].values).sum(axis=(-1, -2)).ravel().tolist() == [10_808, 10_891]


def test_9999_is_a_value_beside_missing_values(tmp_path):
    field = np.linspace(9990, 10010, 40).reshape(5, 8)
    field[2, 2], field[0, 0] = np.nan, 9999
    (tmp_path / "file").write_bytes(Encoder(Grid.regular(5, 8), bitsPerValue=24).encode(field, shortName="t"))
    np.testing.assert_allclose(open_ensemble(tmp_path / "file").t.values.squeeze(), field, atol=0.01)


def test_a_surface_field_and_a_pressure_level_with_one_name_are_both_read(writer, tmp_path):
    path = writer.forecast(tmp_path / "file", ("z", "z@500"))
    dataset = open_ensemble(path, variables("z", "z@500"))
    for variable in variables("z", "z@500"):
        field = select_variable(dataset, variable)[0, 1, 2]
        np.testing.assert_allclose(field, writer.value(variable, 1998, 24, 3), atol=PACKING)
    assert list(open_ensemble(path, variables("z"))) == ["z"]
    np.testing.assert_array_equal(
        select_variable(open_ensemble(path, variables("z")), Variable("z")), select_variable(dataset, Variable("z"))
    )


def test_levels_that_were_not_selected_are_nan(writer, tmp_path):
    path = writer.forecast(tmp_path / "file", ("z@500", "t@500", "z@850", "t@850"))
    dataset = open_ensemble(path, variables("z@500", "t@850"))
    filled = {name: np.isfinite(dataset[name]).all(("latitude", "longitude")) for name in dataset}
    assert filled["z"].sel(level=500).all()
    assert filled["t"].sel(level=850).all()
    assert not filled["z"].sel(level=850).any()


def test_several_files_are_one_archive(writer, tmp_path):
    for name in ("2t", "z@500"):
        for years in ((1998, 1999), (2000,)):
            writer.forecast(tmp_path / f"output.{name}.{years[0]}", (name,), years)
    (tmp_path / "output.2t.1998.923a8.idx").write_text("left by other software")
    dataset = open_ensemble(str(tmp_path / "output.*"))
    assert dataset.sizes["init_time"] == 3
    assert np.isfinite(dataset["2t"]).all()
    both = open_ensemble([tmp_path / "output.2t.2000", str(tmp_path / "output.z*"), tmp_path / "output.2t.1998"])
    xr.testing.assert_identical(both.load(), dataset.load())


# Lazy reading


@settings(max_examples=60)
@given(st.data())
def test_any_part_of_the_cube_equals_the_same_part_of_the_loaded_cube(writer, tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "part"
    if not path.exists():
        writer.forecast(path, ("t@500", "t@850"))
    dataset = open_ensemble(path, chunks=None)
    whole = dataset.t.copy().load()
    key = {}
    for name, size in dataset.t.sizes.items():
        one = st.integers(-size, size - 1)
        some = st.lists(one, max_size=4)
        ahead = st.builds(slice, st.none() | one, st.none() | one, st.sampled_from([None, 1, 2]))
        part = ahead | st.just(slice(None, None, -1))
        key[name] = data.draw(st.just(slice(None)) | one | some | part, label=name)
    xr.testing.assert_identical(dataset.t.isel(key).load(), whole.isel(key))


def test_points_along_a_track(writer, tmp_path):
    dataset = open_ensemble(writer.forecast(tmp_path / "file"), chunks=None)
    track = {
        "latitude": xr.DataArray([0, 2, 4], dims="point"),
        "longitude": xr.DataArray([1, 0, 7], dims="point"),
    }
    xr.testing.assert_identical(dataset["2t"].isel(track).load(), dataset["2t"].copy().load().isel(track))


def test_only_the_indexed_fields_are_decoded(writer, tmp_path, monkeypatch):
    path = writer.forecast(tmp_path / "file", ("2t", "z@500"))
    decoded, original = [], reader.read_values
    monkeypatch.setattr(reader, "read_values", lambda *arguments: decoded.append(1) or original(*arguments))
    dataset = open_ensemble(path, chunks=None)
    part = dataset["2t"].isel(init_time=1, lead_time=[0, 2])
    assert not decoded
    assert part.values.shape == (2, 3, 5, 8)
    assert len(decoded) == 6
    chunked = open_ensemble(path)
    assert isinstance(chunked["2t"].data, dask.array.Array)
    assert chunked.z.data.chunksize == (1, 1, 3, 1, 5, 8)
    assert len(decoded) == 6
    chunked.z.isel(init_time=0, lead_time=0).compute()
    assert len(decoded) == 9


def test_a_dataset_can_be_pickled(writer, tmp_path):
    path = writer.forecast(tmp_path / "file")
    for chunks in ("auto", None):
        dataset = open_ensemble(path, chunks=chunks)
        copy = pickle.loads(pickle.dumps(dataset))
        xr.testing.assert_identical(copy.load(), open_ensemble(path).load())


def test_many_threads_read_the_same_values_as_one(writer, tmp_path, monkeypatch):
    dataset = open_ensemble(writer.forecast(tmp_path / "file", ("t@500", "t@850", "2t")), chunks=None)
    alone = dataset.copy().load()
    monkeypatch.setattr(BUDGET, "_total", 7)
    monkeypatch.setattr(reader, "MIN_THREAD_BYTES", 1)
    for _ in range(5):
        xr.testing.assert_identical(dataset.copy().load(), alone)


def test_different_cubes_have_different_dask_names(writer, tmp_path):
    path = writer.forecast(tmp_path / "file", ("2t", "skt"))
    names = [open_ensemble(path, variables(name)).get(name).data.name for name in ("2t", "skt", "2t")]
    assert names[0] == names[2] != names[1]
    writer.forecast(path, ("2t", "skt"), bitsPerValue=8)
    assert open_ensemble(path, variables("2t"))["2t"].data.name != names[0]


def test_a_file_changed_after_opening_is_noticed(writer, tmp_path):
    path = writer.forecast(tmp_path / "file")
    dataset = open_ensemble(path, chunks=None)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match="file has changed since it was opened; run again"):
        dataset["2t"].load()
    path.unlink()
    with pytest.raises(InputError, match=r"cannot read .*file \(No such file"):
        dataset["2t"].isel(number=0).load()


# Missing fields


def test_the_first_missing_member_is_named(writer, tmp_path):
    without = [("2t", 1999, 24, 2), ("2t", 1999, 48, 3)]
    paths = [writer.forecast(tmp_path / f"sfc{y}", years=(y,), without=without) for y in (1998, 1999)]
    sentence = r"sfc1999 lacks 2t at init_time 1999-01-04T00:00, lead_time 24, number 2, the first of 2 missing"
    with pytest.raises(InputError, match=sentence):
        open_ensemble(paths)
    masked = open_ensemble(paths, missing="mask")["2t"]
    absent = np.isnan(masked).all(("latitude", "longitude"))
    assert int(absent.sum()) == 2
    assert bool(absent.sel(lead_time=24, number=2)[1])
    whole = open_ensemble(paths, lead_times=[0])
    assert whole.sizes["lead_time"] == 1


def test_a_variable_with_a_missing_level_is_named(samples):
    path = samples / "grib_cfgrib_samples" / "uv_on_different_levels.grib"
    with pytest.raises(InputError, match=r"uv_on_different_levels\.grib lacks v@400 at .* lead_time 6, number 0"):
        open_ensemble(path)
    theirs = cfgrib(path, shortName="v")
    ours = open_ensemble(path, missing="mask")
    assert ours.u.sizes["level"] == 5
    np.testing.assert_array_equal(ours.v.sel(level=[1000, 700, 500]).squeeze(), theirs.v.transpose("step", ...))
    assert np.isnan(ours.v.sel(level=[850, 400])).all()
    assert list(open_ensemble(path, variables("u@400", "v@500"))) == ["u", "v"]


def test_a_variable_that_cfgrib_drops_is_reported(samples):
    """Of this file cfgrib reads the gust and drops the geopotential with a log line."""
    path = samples / "grib_metview_ens" / "fc_storm.grib"
    with pytest.raises(InputError, match="lacks z@850 at init_time 2013-10-25T00:00, lead_time 72"):
        open_ensemble(path)
    assert open_ensemble(path, variables("z@850")).lead_time.values.tolist() == [78]
    assert open_ensemble(path, variables("10fg3")).lead_time.values.tolist() == [72, 78, 84]


def test_a_mostly_empty_cube_is_refused_before_it_is_allocated(samples):
    path = samples / "grib_cfgrib_samples" / "forecast_monthly_ukmo.grib"
    for missing in ("error", "mask"):
        with pytest.raises(
            InputError, match=r"only 168 of the 4480 fields .*init_time 8 x lead_time 20 .*96% are missing"
        ):
            open_ensemble(path, missing=missing)
    assert open_ensemble(path, lead_times=[744]).sizes["number"] == 7


def test_unknown_variables_and_lead_times_are_named_with_the_available_ones(writer, tmp_path):
    path = writer.forecast(tmp_path / "file", ("2t", "z@500"))
    with pytest.raises(InputError, match=r"file has no t@850, 10u; it has 2t, z@500"):
        open_ensemble(path, variables("2t", "t@850", "10u"))
    with pytest.raises(InputError, match=r"file has no lead time 36 h; it has 0, 24, 48 h"):
        open_ensemble(path, lead_times=[24, 36])
    with pytest.raises(InputError, match=r"no variable of .*file was requested"):
        open_ensemble(path, [])
    with pytest.raises(InputError, match=r"no lead time of .*file was requested"):
        open_ensemble(path, lead_times=[])
    with pytest.raises(InputError, match="missing must be error or mask, got 'ignore'"):
        open_ensemble(path, missing="ignore")
    with pytest.raises(InputError, match="chunks must be auto or None, got 'yes'"):
        open_ensemble(path, chunks="yes")


def test_fields_that_cannot_be_named_are_reported(samples):
    path = samples / "grib_cfgrib_samples" / "hpa_and_pa.grib"
    with pytest.raises(InputError, match=r"t \(isobaricInPa 10\), which is neither at the surface nor"):
        open_ensemble(path)
    assert open_ensemble(path, variables("t@1")).level.values.tolist() == [1]


def test_steps_that_are_not_whole_hours_are_refused_unless_others_are_selected(writer, tmp_path):
    encoder = Encoder(writer.grid, edition=2, shortName="2t", typeOfLevel="heightAboveGround", level=2)
    field = np.zeros(writer.grid.shape)
    path = tmp_path / "file"
    messages = [encoder.encode(field, indicatorOfUnitOfTimeRange=0, forecastTime=k) for k in (60, 90)]
    path.write_bytes(b"".join(messages))
    with pytest.raises(InputError, match=rf"file \(byte {len(messages[0])}\) is not valid a whole number of hours"):
        open_ensemble(path)
    assert open_ensemble(path, lead_times=[1]).lead_time.values.tolist() == [1]


# Contradictions


def test_two_messages_of_one_field_are_both_named(writer, tmp_path):
    one = writer.forecast(tmp_path / "one", expver="0001")
    other = writer.forecast(tmp_path / "other", expver="0002", years=(1999,), leads=(24,), numbers=(2,))
    with pytest.raises(
        InputError, match=r"one \(byte \d+\) and .*other \(byte 0\) both hold 2t .*expver 0001 and 0002"
    ):
        open_ensemble([one, other])


def test_a_repeated_identical_message_is_accepted(writer, tmp_path):
    one = writer.forecast(tmp_path / "one")
    shutil.copy(one, tmp_path / "two")
    xr.testing.assert_identical(open_ensemble([one, tmp_path / "two"]).load(), open_ensemble(one).load())


def test_model_levels_are_not_mixed_up(samples):
    with pytest.raises(InputError, match=r"has t on 35 levels, 1 x hybrid 1, 1 x hybrid 5"):
        open_ensemble(samples / "grib_metview_ens" / "ml_data.grib")


def test_two_grids_are_both_named(samples):
    sentence = r"has tp on 37 x 72 points.* has tp on 46 x 90 points"
    with pytest.raises(InputError, match=sentence):
        open_ensemble(samples / "grib_cfgrib_samples" / "tp_on_different_grid_resolutions.grib")


def test_coordinates_with_rounding_differences_are_one_grid(tmp_path):
    value = np.zeros((3, 360))
    paths = []
    for k, first in enumerate((0.0, 0.001)):
        grid = Grid((50, 49, 48), tuple(first + np.arange(360) * 0.999))
        paths.append(tmp_path / f"file{k}")
        paths[-1].write_bytes(Encoder(grid, typeOfLevel="surface", level=0).encode(value, shortName=("2t", "skt")[k]))
    assert len(open_ensemble(paths)) == 2


def test_fields_with_different_scanning_share_one_grid(writer, tmp_path):
    """One field is scanned from the north, the other from the south and from 180 degrees."""
    field = writer.value(Variable("2t"), 2000, 0, 1)
    north = Encoder(writer.grid, typeOfLevel="surface", level=0).encode(field, shortName="2t")
    handle = eccodes.codes_new_from_message(
        Encoder(writer.grid, typeOfLevel="surface", level=0).encode(np.roll(field, 4, 1)[::-1], shortName="skt")
    )
    for key, value in {
        "scanningMode": 64, "latitudeOfFirstGridPointInDegrees": -90, "latitudeOfLastGridPointInDegrees": 90,
        "longitudeOfFirstGridPointInDegrees": 180, "longitudeOfLastGridPointInDegrees": 135,
    }.items():  # fmt: skip
        eccodes.codes_set(handle, key, value)
    (tmp_path / "file").write_bytes(north + eccodes.codes_get_message(handle))
    dataset = open_ensemble(tmp_path / "file")
    np.testing.assert_array_equal(dataset["2t"], dataset.skt)
    np.testing.assert_allclose(dataset.skt.squeeze(), field, atol=PACKING)


def test_grids_that_cannot_be_read_are_refused_by_name(samples):
    name = "grib_earthkit/rotated_wind_20x20.grib"
    with pytest.raises(InputError, match=rf"{name} \(byte 0\): 10u: the grid is rotated_ll"):
        open_ensemble(samples / name)


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("grib_cfgrib_samples/reduced_gg.grib", "reduced Gaussian grid N48"),
        ("grib_earthkit/healpix_H8.grib2", "HEALPix grid H8"),
    ],
)
def test_reduced_grids_are_refused_with_the_option_that_reads_them(samples, name, grid):
    with pytest.raises(InputError, match=rf"{name} \(byte 0\) is on the {grid} .*data.archive.grid=0.5"):
        open_ensemble(samples / name)


def test_precipitation_of_both_editions_is_in_metres(writer, tmp_path):
    """ECMWF writes it in m in GRIB1, in kg m-2 in GRIB2."""
    for edition, parameter in ((1, 228), (2, 228228)):
        message = Encoder(writer.grid, edition=edition, typeOfLevel="surface", level=0, paramId=parameter)
        (tmp_path / f"grib{edition}").write_bytes(
            message.encode(np.full(writer.grid.shape, 12.5), dataDate=20000100 + edition)
        )
    opened = open_ensemble(tmp_path / "grib*").tp
    assert opened.units == "m"
    assert opened.mean(("latitude", "longitude")).values.ravel().tolist() == [12.5, np.float32(0.0125)]


# Analyses and static fields


def test_analyses_by_valid_time(tmp_path):
    def value(name, time):
        return 250 + 10 * np.random.default_rng([*name.encode(), time]).standard_normal((5, 8))

    times = [2016010100, 2016010112, 2015123112]
    path = analysis(tmp_path / "era5", ("t@850", "2t"), times, value)
    dataset = open_analysis(path)
    assert dataset.t.dims == ("time", "level", "latitude", "longitude")
    assert dataset["2t"].data.chunksize == (1, 5, 8)
    assert [str(time)[:13] for time in dataset.time.values] == [
        "2015-12-31T12",
        "2016-01-01T00",
        "2016-01-01T12",
    ]
    for time, k in zip(times, (1, 2, 0), strict=True):
        np.testing.assert_allclose(dataset["2t"][k], value("2t", time), atol=PACKING)
        np.testing.assert_allclose(select_variable(dataset, Variable("t", 850))[k], value("t@850", time), atol=PACKING)
    lazy = open_analysis(path, variables("2t"), chunks=None)
    xr.testing.assert_identical(lazy["2t"].load(), dataset["2t"].load())


def test_a_missing_analysis_is_named(tmp_path):
    one = analysis(tmp_path / "one", ("t@850", "2t"), [2016010100], lambda *_: np.zeros((5, 8)))
    two = analysis(tmp_path / "two", ("2t",), [2016010112], lambda *_: np.zeros((5, 8)))
    with pytest.raises(InputError, match=r"two lacks t@850 at time 2016-01-01T12:00, the first of 1 missing"):
        open_analysis([one, two])
    assert np.isnan(open_analysis([one, two], missing="mask").t.values[1]).all()


def test_only_the_starts_of_forecasts_are_analyses(writer, tmp_path):
    path = writer.forecast(tmp_path / "forecast", numbers=(0,))
    assert open_analysis(path).sizes["time"] == 2
    writer.forecast(path, leads=(24, 48), numbers=(0,))
    with pytest.raises(InputError, match=r"forecast has forecasts but no analysis \(step 0\)"):
        open_analysis(path)


def test_members_are_not_one_analysis(samples):
    with pytest.raises(InputError, match=r"hold t@500 of members 0 and 1, 10 members in all"):
        open_analysis(samples / "grib_cfgrib_samples" / "era5-levels-members.grib")


def test_static_fields_of_any_date(tmp_path):
    for name, date in (("lsm", 1998010100), ("z", 2018010100)):
        analysis(tmp_path / name, (name,), [date], lambda name, _: np.full((5, 8), float(len(name))))
    dataset = open_static([tmp_path / "lsm", tmp_path / "z"])
    assert set(dataset) == {"lsm", "z"}
    assert dataset.lsm.dims == ("latitude", "longitude")
    assert dataset.lsm.values.max() == 3
    assert set(open_static(tmp_path / "*", ["z"])) == {"z"}
    with pytest.raises(InputError, match="has no orog; it has lsm, z"):
        open_static(tmp_path / "*", ["orog"])


def test_pressure_levels_are_not_static(writer, tmp_path):
    mixed = writer.forecast(tmp_path / "mixed", ("z", "z@500"), (1998,), (0,), (0,))
    assert list(open_static(mixed)) == ["z"]
    writer.forecast(mixed, ("z@500",))
    with pytest.raises(InputError, match=r"mixed has no fields at the surface but z@500"):
        open_static(mixed)
