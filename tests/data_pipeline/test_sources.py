"""The contract of archives in every format and of stores: the weather that was written, in every way of reading it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xarray as xr
from weather_files import GRID, OUTER, STARTS, WRITERS, open_store, weather

from data_pipeline.common.errors import InputError
from data_pipeline.formats.datasets import select_variable
from data_pipeline.formats.open import open_analysis, open_ensemble
from data_pipeline.task import Task, Variable

LEADS, NUMBERS, LEVELS = (0, 24, 48), (0, 2, 5), (850, 500)
WEATHER = weather(LEADS, NUMBERS, LEVELS)
VARIABLES = tuple(map(Variable.parse, ("2t", "t@500", "t@850")))
TASK = Task("all", [*map(str, VARIABLES)], [*map(str, VARIABLES)], list(LEADS), ["lsm"])
PACKING = 1e-3
"""Greatest difference between values and their packed values in GRIB."""


@pytest.fixture(scope="module", params=[name for name in WRITERS if name != "arrays"])
def source(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    make, open_source = WRITERS[request.param]
    for part in OUTER:
        make(folder / part, part, WEATHER[part])
    return open_store(folder, TASK) if open_source is open_store else open_source(folder)


of_files = pytest.mark.parametrize(
    "source", [name for name in WRITERS if name.split()[0] not in ("arrays", "store")], indirect=True, scope="module"
)
"""Files alone are opened as datasets of xarray."""


def datasets(source, **options):
    """Return ensemble and analyses as datasets of xarray."""
    ensemble = open_ensemble(source.ensemble, VARIABLES, LEADS, names=source.variable_names, **options)
    return ensemble, open_analysis(source.analysis, VARIABLES, names=source.variable_names, **options)


def written(variable, part="ensemble"):
    """Return the fields of a variable that were written."""
    return select_variable(WEATHER[part], variable).values


def read(fields, init, lead, dtype=np.float32, members=3):
    """Return all fields of a forecast (M, C, H, W)."""
    out = np.full((members, len(fields.variables), *GRID.shape), np.inf, dtype)
    fields.read(fields.cells[init, lead], out)
    return out


@of_files
def test_the_parts_as_datasets(source):
    dataset, analyses = datasets(source, chunks=None)
    dims = ("init_time", "lead_time", "number", "level", "latitude", "longitude")
    assert (dataset.t.dims, dataset["2t"].dims) == (dims, dims[:3] + dims[4:])
    assert (analyses["2t"].dims, source.static.lsm.dims) == (("time", *dims[4:]), dims[4:])
    np.testing.assert_array_equal(dataset.init_time.values.astype("M8[D]"), STARTS.astype("M8[D]"))
    for name, values in (("lead_time", LEADS), ("number", NUMBERS), ("level", LEVELS)):
        assert dataset[name].values.tolist() == list(values)
    np.testing.assert_allclose(dataset.latitude, GRID.latitudes)
    np.testing.assert_allclose(dataset.longitude, GRID.longitudes)
    for variable in VARIABLES:
        values = select_variable(dataset, variable).values
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, written(variable), rtol=0, atol=PACKING)
        found = select_variable(analyses, variable).values
        np.testing.assert_allclose(found, written(variable, "analysis"), rtol=0, atol=PACKING)
    np.testing.assert_allclose(source.static.lsm, WEATHER["static"].lsm, rtol=0, atol=PACKING)
    chunked, _ = datasets(source, chunks="auto")
    assert chunked.t.data.chunksize[:2] == (1, 1)
    xr.testing.assert_identical(chunked.compute(), dataset.load())
    part = {"latitude": slice(1, None, 2), "longitude": [5, 0], "number": -1, "init_time": 2}
    xr.testing.assert_identical(chunked.isel(part).compute(), dataset.isel(part))


@of_files
def test_fields_are_those_of_the_dataset(source):
    dataset, fields = datasets(source)[0].load(), source.ensemble_fields(VARIABLES, LEADS)
    assert (fields.variables, fields.lead_times, fields.numbers) == (VARIABLES, LEADS, NUMBERS)
    assert fields.grid.matches(GRID)
    np.testing.assert_array_equal(fields.init_times, dataset.init_time.values)
    assert fields.init_times.dtype == np.dtype("datetime64[s]")
    for i, j in np.ndindex(3, 3):
        expected = np.stack([select_variable(dataset, variable)[i, j] for variable in VARIABLES], axis=1)
        for dtype, tolerance in ((np.float32, 0), (np.float64, 1e-4)):
            np.testing.assert_allclose(read(fields, i, j, dtype), expected, rtol=0, atol=tolerance)


def test_some_variables_lead_times_rows_members_and_analyses(source):
    fields = source.ensemble_fields(VARIABLES[:0:-1], (48,))
    assert (fields.variables, fields.lead_times) == (VARIABLES[:0:-1], (48,))
    expected = [written(variable)[2, 2] for variable in VARIABLES[:0:-1]]
    np.testing.assert_allclose(read(fields, 2, 0), np.stack(expected, axis=1), rtol=0, atol=PACKING)
    fields = source.analysis_fields(VARIABLES[:2])
    assert (fields.lead_times, fields.numbers) == ((0,), (0,))
    expected = [written(variable, "analysis")[1] for variable in VARIABLES[:2]]
    np.testing.assert_allclose(read(fields, 1, 0, members=1)[0], expected, rtol=0, atol=PACKING)
    fields = source.ensemble_fields(VARIABLES, LEADS)
    positions = [*np.ndindex(3, 3)] * 2
    alone = [read(fields, *position) for position in positions[:9]]
    for rows, members in ((slice(0, 2), slice(None)), (slice(1, 4), [2, 0]), (slice(16, 17), [0])):
        expected = alone[5][members][:, :, rows]
        out = np.empty_like(expected)
        fields.read(fields.cells[1, 2, members], out, (rows, slice(None)))
        np.testing.assert_array_equal(out, expected)
    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(pool.map(lambda position: read(fields, *position), positions), alone * 2, strict=True):
            np.testing.assert_array_equal(one, other)


def test_unknown_selections_are_refused(source):
    for variables, leads, sentence in (
        ([Variable("skt")], LEADS, "has no skt; it has 2t, t@500, t@850"),
        ([Variable("t", 700)], LEADS, "has no t@700; it has 2t, t@500, t@850"),
        (VARIABLES, (24, 72), "has no lead time 72 h; it has 0, 24, 48 h$"),
        (VARIABLES, (72,), "has no lead time 72 h; it has 0, 24, 48 h$"),
        ([], LEADS, r"no variable of .* was requested; name at least one, such as 2t or t@850$"),
        (VARIABLES, [], r"no lead time of .* was requested; name at least one, in hours$"),
    ):
        with pytest.raises(InputError, match=sentence):
            source.ensemble_fields(variables, leads)
    with pytest.raises(InputError, match="has no msl; it has 2t, t@500, t@850"):
        source.analysis_fields([Variable("msl")])
