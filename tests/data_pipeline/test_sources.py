"""The contract of every data source: the same data in several formats give the same datasets and fields."""

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.formats.datasets import select_variable
from data_pipeline.formats.grib import Encoder
from data_pipeline.formats.open import ensemble_fields, open_ensemble
from data_pipeline.grid import Grid
from data_pipeline.protocols import DataSource
from data_pipeline.store import Store
from data_pipeline.task import Task, Variable

GRID = Grid.regular(5, 8)
PACKING = 2e-3
"""Greatest difference between values and their packed values in GRIB."""

VARIABLES = tuple(Variable.parse(name) for name in ("2t", "z@500", "t@500", "t@850"))
YEARS, LEADS, NUMBERS = (2000, 2001, 2003), (0, 24, 48), (0, 2, 5)
LOCAL = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 1, "class": "od", "expver": "0001"}
UNITS = {"2t": "K", "t": "K", "z": "m2 s-2", "lsm": "1"}


def value(variable: Variable, year: int, lead: int, number: int) -> np.ndarray:
    """Return a unique field, (H, W); member -1 is the analysis."""
    entropy = [*variable.name.encode(), variable.level, year, lead, number + 1]
    return 270 + 10 * np.random.default_rng(entropy).standard_normal(GRID.shape)


def valid(year: int) -> int:
    """Return the valid day of an analysis, as YYYYMMDD: the day of the start."""
    return year * 10000 + 104


def place(variable: Variable) -> dict:
    """Return the GRIB keys of a variable."""
    level = "isobaricInhPa" if variable.level else "surface"
    return {"shortName": variable.name, "typeOfLevel": level, "level": variable.level}


def write_grib(folder: Path, without: tuple = ()) -> Archive:
    """Write the data as GRIB, except the forecasts `without` (variable, year, lead, number)."""
    ensemble, analysis = Encoder(GRID, **LOCAL, type="pf", stream="enfo"), Encoder(GRID, **LOCAL, type="an")
    with (folder / "ensemble").open("wb") as file:
        for variable, year, lead, number in np.ndindex(len(VARIABLES), len(YEARS), len(LEADS), len(NUMBERS)):
            at = VARIABLES[variable], YEARS[year], LEADS[lead], NUMBERS[number]
            if at not in without:
                own = {"dataDate": valid(at[1]), "endStep": at[2], "perturbationNumber": at[3]}
                file.write(ensemble.encode(value(*at), **place(at[0]), **own))
    with (folder / "analysis").open("wb") as file:
        for variable in VARIABLES:
            for year in YEARS:
                file.write(analysis.encode(value(variable, year, 0, -1), **place(variable), dataDate=valid(year)))
    with (folder / "static").open("wb") as file:
        land = GRID.weights[:, None] + np.zeros(GRID.shape)
        file.write(analysis.encode(land, **place(Variable("lsm")), dataDate=20000101))
    return Archive([str(folder / "ensemble")], [str(folder / "analysis")], [str(folder / "static")])


def write_netcdf(folder: Path, without: tuple = ()) -> Archive:
    """Write the packed values of the GRIB files as NetCDF, south first and from 180°W."""
    (folder / "grib").mkdir()
    grib = write_grib(folder / "grib", without)
    part = Archive(grib.ensemble, grib.analysis, grib.static_fields, missing="mask")
    forecasts, analyses = part.forecasts(VARIABLES, LEADS), part.analyses(VARIABLES)
    days = (forecasts.init_time.values - np.datetime64("1990-01-01")) / np.timedelta64(1, "D")
    shape = (len(YEARS), len(LEADS), len(NUMBERS))
    kept = {
        (variable, position): (variable, YEARS[position[0]], LEADS[position[1]], NUMBERS[position[2]]) not in without
        for variable in VARIABLES
        for position in np.ndindex(*shape)
    }
    # One file per start; for a start with a missing forecast, one file per field. Names as written by cdo.
    for i, year in enumerate(YEARS):
        for variable in VARIABLES:
            field = select_variable(forecasts, variable).values
            complete = all(kept[variable, (i, j, k)] for j in range(3) for k in range(3))
            parts = [(slice(None), slice(None))] if complete else [
                (slice(j, j + 1), slice(k, k + 1)) for j in range(3) for k in range(3) if kept[variable, (i, j, k)]
            ]  # fmt: skip
            for n, (leads, members) in enumerate(parts):
                with create(folder / f"ensemble.{year}.{variable}.{n}") as file:
                    scalar(file, "forecast_reference_time", days[i], units="days since 1990-01-01")
                    axis(file, "step", np.array(LEADS)[leads] / 24, units="days", standard_name="forecast_period")
                    axis(file, "member", np.array(NUMBERS)[members], standard_name="realization")
                    if variable.level:
                        scalar(file, "plev", variable.level * 100.0, units="Pa", standard_name="air_pressure")
                    name = "T2M" if variable.name == "2t" else variable.name.upper()
                    write(file, name, ("step", "member"), field[i, leads, members], UNITS[variable.name])
    for variable in VARIABLES:
        with create(folder / f"analysis.{variable}") as file:
            axis(file, "time", days * 24, units="hours since 1990-01-01", standard_name="time")
            if variable.level:
                axis(file, "plev", np.array([variable.level * 100.0]), units="Pa", standard_name="air_pressure")
            name, values = f"var_{variable.name}", select_variable(analyses, variable).values
            dimensions = ("time", "plev") if variable.level else ("time",)
            write(file, name, dimensions, values[:, None] if variable.level else values, UNITS[variable.name])
    with create(folder / "static") as file:
        write(file, "LSM", (), part.static.lsm.values, "1")
    names = {"var_2t": "2t", "var_t": "t", "var_z": "z"}
    return Archive(
        [str(folder / "ensemble*")], [str(folder / "analysis*")], [str(folder / "static")], variable_names=names
    )  # fmt: skip


def create(path: Path) -> netCDF4.Dataset:
    """Create a file with its grid."""
    file = netCDF4.Dataset(path, "w")
    axis(file, "lat", np.array(GRID.latitudes)[::-1], units="degrees_north", standard_name="latitude")
    axis(file, "lon", np.array(GRID.longitudes) - 180, units="degrees_east", standard_name="longitude")
    return file


def axis(file: netCDF4.Dataset, name: str, values: np.ndarray, **attributes: str) -> None:
    """Write a dimension and its coordinate."""
    file.createDimension(name, len(values))
    file.createVariable(name, values.dtype, (name,))[:] = values
    file[name].setncatts(attributes)


def scalar(file: netCDF4.Dataset, name: str, number: float, **attributes: str) -> None:
    """Write a scalar coordinate."""
    file.createVariable(name, "f8")[...] = number
    file[name].setncatts(attributes)


def write(file: netCDF4.Dataset, name: str, outer: tuple, values: np.ndarray, units: str) -> None:
    """Write fields of `GRID` into a file that is south first from 180°W."""
    variable = file.createVariable(name, "f4", (*outer, "lat", "lon"))
    variable[...] = np.roll(values, GRID.shape[1] // 2, axis=-1)[..., ::-1, :]
    variable.units = units


def write_store(folder: Path) -> Store:
    """Write the data as GRIB, with an analysis for every valid time, and a store of all of it."""
    archive = write_grib(folder)
    with (folder / "analysis").open("ab") as file:
        later = Encoder(GRID, **LOCAL, type="an")
        for variable, year, days in product(VARIABLES, YEARS, (1, 2)):
            field = value(variable, year, 24 * days, -1)
            file.write(later.encode(field, **place(variable), dataDate=valid(year) + days))
    names = [str(variable) for variable in VARIABLES]
    return Store.write(archive, Task("all", names, names, list(LEADS)), folder / "store")


SOURCES: dict[str, Callable[..., DataSource]] = {"grib": write_grib, "netcdf": write_netcdf, "store": write_store}


@pytest.fixture(scope="module", params=SOURCES)
def source(request, tmp_path_factory):
    return SOURCES[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def gaps(tmp_path_factory):
    """Every source without one forecast, all opened with `missing="error"`."""
    without = ((VARIABLES[2], YEARS[1], LEADS[2], NUMBERS[0]),)
    return {name: SOURCES[name](tmp_path_factory.mktemp(name), without) for name in ("grib", "netcdf")}


def test_the_ensemble_as_a_dataset(source):
    dataset = source.forecasts(VARIABLES, LEADS)
    assert dataset.t.dims == ("init_time", "lead_time", "number", "level", "latitude", "longitude")
    assert dataset["2t"].dims == ("init_time", "lead_time", "number", "latitude", "longitude")
    assert dataset.init_time.values.astype("datetime64[D]").astype(str).tolist() == [f"{y}-01-04" for y in YEARS]
    assert dataset.lead_time.values.tolist() == list(LEADS)
    assert dataset.number.values.tolist() == list(NUMBERS)
    assert dataset.level.values.tolist() == [850, 500]
    np.testing.assert_allclose(dataset.latitude, GRID.latitudes)
    np.testing.assert_allclose(dataset.longitude, GRID.longitudes)
    for variable in VARIABLES:
        values = select_variable(dataset, variable).values
        assert values.dtype == np.float32
        for i, j, k in np.ndindex(3, 3, 3):
            expected = value(variable, YEARS[i], LEADS[j], NUMBERS[k])
            np.testing.assert_allclose(values[i, j, k], expected, atol=PACKING)
    assert np.isnan(dataset.z.sel(level=850)).all()  # not selected


def test_analyses_as_a_dataset(source):
    dataset = source.analyses(VARIABLES)
    assert dataset["2t"].dims == ("time", "latitude", "longitude")
    for variable in VARIABLES:
        for year in YEARS:
            found = select_variable(dataset, variable).sel(time=f"{year}-01-04").squeeze("time")
            np.testing.assert_allclose(found, value(variable, year, 0, -1), atol=PACKING)


def test_static_fields(source):
    assert source.static.lsm.dims == ("latitude", "longitude")
    np.testing.assert_allclose(source.static.lsm, GRID.weights[:, None] + np.zeros(GRID.shape), atol=1e-4)


def test_dask_arrays_have_the_same_values(source):
    lazy, chunked = source.forecasts(VARIABLES, LEADS), source.forecasts(VARIABLES, LEADS, chunks="auto")
    assert chunked.t.data.chunksize[:2] == (1, 1)
    xr.testing.assert_identical(chunked.compute(), lazy.load())


def test_fields_are_those_of_the_dataset(source):
    dataset, fields = source.forecasts(VARIABLES, LEADS).load(), source.ensemble_fields(VARIABLES, LEADS)
    assert fields.variables == VARIABLES
    assert fields.lead_times == LEADS
    assert fields.numbers == NUMBERS
    assert fields.grid.matches(GRID)
    np.testing.assert_array_equal(fields.init_times, dataset.init_time.values)
    assert fields.init_times.dtype == np.dtype("datetime64[s]")
    for i, j in np.ndindex(3, 3):
        for dtype, tolerance in ((np.float32, 0), (np.float64, 1e-4)):
            out = np.full((3, 4, *GRID.shape), np.inf, dtype)
            fields.read(i, j, out)
            for c, variable in enumerate(VARIABLES):
                np.testing.assert_allclose(out[:, c], select_variable(dataset, variable)[i, j], rtol=0, atol=tolerance)


def test_variables_in_another_order_and_fewer_lead_times(source):
    chosen = (VARIABLES[3], VARIABLES[0])
    fields = source.ensemble_fields(chosen, (48,))
    assert (fields.variables, fields.lead_times) == (chosen, (48,))
    out = np.empty((3, 2, *GRID.shape))
    fields.read(2, 0, out)
    for k, number in enumerate(NUMBERS):
        for c, variable in enumerate(chosen):
            np.testing.assert_allclose(out[k, c], value(variable, YEARS[2], 48, number), atol=PACKING)


def test_analyses_are_forecasts_with_lead_time_0(source):
    fields = source.analysis_fields(VARIABLES[:2])
    assert (fields.lead_times, fields.numbers) == ((0,), (0,))
    out = np.empty((1, 2, *GRID.shape), np.float32)
    fields.read(fields.init_times.astype(str).tolist().index(f"{YEARS[1]}-01-04T12:00:00"), 0, out)
    for c in range(2):
        np.testing.assert_allclose(out[0, c], value(VARIABLES[c], YEARS[1], 0, -1), atol=PACKING)


@pytest.mark.parametrize("rows", [slice(0, 2), slice(1, 4), slice(4, 5), slice(None)])
@pytest.mark.parametrize("members", [None, [0], [2, 0], [1, 2]])
def test_rows_and_members(source, rows, members):
    fields = source.ensemble_fields(VARIABLES, LEADS)
    whole = np.empty((3, 4, *GRID.shape), np.float32)
    fields.read(1, 2, whole)
    expected = whole[:, :, rows] if members is None else whole[members][:, :, rows]
    out = np.empty_like(expected)
    fields.read(1, 2, out, rows, members)
    np.testing.assert_array_equal(out, expected)


def test_fields_can_be_pickled(source):
    fields = source.ensemble_fields(VARIABLES, LEADS)
    one, other = np.empty((2, 3, 4, *GRID.shape), np.float32)
    fields.read(0, 1, one)
    pickle.loads(pickle.dumps(fields)).read(0, 1, other)
    np.testing.assert_array_equal(one, other)


def test_many_threads_read_the_same_values(source):
    fields = source.ensemble_fields(VARIABLES, LEADS)

    def sample(position: tuple[int, int]) -> np.ndarray:
        out = np.empty((3, 4, *GRID.shape), np.float32)
        fields.read(*position, out)
        return out

    positions = [*np.ndindex(3, 3)] * 5
    alone = [sample(position) for position in positions]
    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(pool.map(sample, positions), alone, strict=True):
            np.testing.assert_array_equal(one, other)


def test_formats_agree_to_the_last_bit(tmp_path):
    archives = []
    for name, make in (("grib", write_grib), ("netcdf", write_netcdf)):
        (tmp_path / name).mkdir()
        archives.append(make(tmp_path / name))
    one, other = archives
    xr.testing.assert_identical(one.forecasts(VARIABLES, LEADS).load(), other.forecasts(VARIABLES, LEADS).load())
    xr.testing.assert_identical(one.analyses(VARIABLES).load(), other.analyses(VARIABLES).load())
    xr.testing.assert_identical(one.static.load(), other.static.load())


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda s: s.forecasts([Variable("skt")], LEADS), r"has no skt; it has 2t, t@500, t@850, z@500(;|$)"),
        (
            lambda s: s.ensemble_fields([Variable("t", 700)], LEADS),
            r"has no t@700; it has 2t, t@500, t@850, z@500(;|$)",
        ),
        (lambda s: s.forecasts(VARIABLES, (24, 72)), r"has no lead time 72 h; it has 0, 24, 48 h$"),
        (lambda s: s.ensemble_fields(VARIABLES, (72,)), r"has no lead time 72 h; it has 0, 24, 48 h$"),
        (lambda s: s.analyses([Variable("msl")]), r"has no msl; it has 2t, t@500, t@850, z@500(;|$)"),
        (lambda s: s.forecasts([], LEADS), r"no variable of .* was requested; name at least one, such as 2t or t@850$"),
        (lambda s: s.forecasts(VARIABLES, []), r"no lead time of .* was requested; name at least one, in hours$"),
    ],
)
def test_unknown_selections_have_the_same_message(source, ask, sentence):
    with pytest.raises(InputError, match=sentence):
        ask(source)


def test_a_missing_field_has_the_same_message(gaps):
    for archive in gaps.values():
        for ask in (open_ensemble, ensemble_fields):
            with pytest.raises(
                InputError,
                match=r"ensemble\S* lacks t@500 at init_time 2001-01-04T12:00, lead_time 48, number 0, the first of 1 "
                r"missing fields; complete the files, or name other variables, lead times or files$",
            ):
                ask(archive.ensemble, VARIABLES, LEADS)


def test_a_missing_field_can_be_masked(gaps):
    for archive in gaps.values():
        fields = archive.ensemble_fields(VARIABLES, LEADS)
        out = np.empty((3, 4, *GRID.shape), np.float32)
        fields.read(1, 2, out)
        holes = np.isnan(out).all((2, 3))
        assert np.argwhere(holes).tolist() == [[0, 2]]
        assert np.isfinite(out[~holes]).all()
