import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import BUDGET
from data_pipeline.formats import datasets
from data_pipeline.formats.datasets import select_variable
from data_pipeline.formats.grib import reader as source
from data_pipeline.formats.open import analysis_fields, ensemble_fields, open_analysis, open_ensemble
from data_pipeline.task import Variable

VARIABLES = [Variable("t", 850), Variable("2t"), Variable("z", 500)]
LEADS = (24, 48)


@pytest.fixture(scope="module")
def file(writer, tmp_path_factory):
    return writer.forecast(tmp_path_factory.mktemp("fields") / "file", ("2t", "z@500", "t@850", "t@500"))


def by_xarray(path, i, j, variables=VARIABLES):
    """The same forecast read through xarray, (M, C, H, W)."""
    dataset = open_ensemble(path, variables, LEADS, missing="mask", chunks=None)
    fields = [select_variable(dataset, variable).isel(init_time=i, lead_time=j).values for variable in variables]
    return np.stack(fields, axis=1)


def test_axes_of_the_fields(file, writer):
    fields = ensemble_fields(file, VARIABLES, LEADS)
    assert fields.grid == writer.grid
    assert fields.variables == tuple(VARIABLES)
    assert fields.init_times.dtype == "datetime64[s]"
    assert fields.init_times.astype(str).tolist() == ["1998-01-04T00:00:00", "1999-01-04T00:00:00"]
    assert fields.lead_times == LEADS
    assert fields.numbers == (1, 2, 3)


@given(st.data())
def test_any_part_of_a_forecast_equals_xarray(file, data):
    fields = ensemble_fields(file, VARIABLES, LEADS)
    i, j = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
    first = data.draw(st.integers(0, 4))
    rows = slice(first, data.draw(st.integers(first + 1, 5)))
    members = data.draw(st.none() | st.lists(st.integers(0, 2), min_size=1, max_size=4))
    whole = by_xarray(file, i, j)[slice(None) if members is None else members, :, rows]
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    strided = data.draw(st.booleans())
    out = np.full((*whole.shape[:3], 16 if strided else 8), -1, dtype)[..., :: 2 if strided else 1]
    fields.read(i, j, out, rows, members)
    np.testing.assert_array_equal(out.astype(np.float32), whole)


def test_double_precision_equals_the_file(file):
    fields = ensemble_fields(file, VARIABLES, LEADS)
    out = np.empty((3, 3, 5, 8))
    fields.read(1, 0, out)
    dataset = open_ensemble(file, VARIABLES, LEADS, chunks=None, dtype=np.dtype(np.float64))
    for c, variable in enumerate(VARIABLES):
        np.testing.assert_array_equal(out[:, c], select_variable(dataset, variable).isel(init_time=1, lead_time=0))
    assert (out != out.astype(np.float32)).any()


def test_missing_fields_are_named_or_nan(writer, tmp_path):
    path = writer.forecast(tmp_path / "file", without=[("2t", 1999, 24, 2)])
    with pytest.raises(InputError, match=r"file lacks 2t at init_time 1999-01-04T00:00, lead_time 24, number 2"):
        ensemble_fields(path, [Variable("2t")], [24])
    fields = ensemble_fields(path, [Variable("2t")], [24], missing="mask")
    out = np.empty((3, 1, 5, 8), np.float32)
    fields.read(1, 0, out)
    assert np.isnan(out).all((1, 2, 3)).tolist() == [False, True, False]
    np.testing.assert_array_equal(out[0, 0], by_xarray(path, 1, 0, [Variable("2t")])[0, 0])


def test_variables_and_lead_times_that_are_not_in_the_file_are_refused(file):
    with pytest.raises(InputError, match="file has no msl; it has 2t, t@500, t@850, z@500"):
        ensemble_fields(file, [Variable("msl")], LEADS)
    with pytest.raises(InputError, match="file has no lead time 36 h; it has 0, 24, 48 h"):
        ensemble_fields(file, VARIABLES, [36])
    with pytest.raises(InputError, match="missing must be error or mask, got 'none'"):
        ensemble_fields(file, VARIABLES, LEADS, missing="none")


def test_an_array_of_another_shape_is_refused(file):
    with pytest.raises(ValueError, match=r"out has shape \(3, 2, 5, 8\), which does not begin with the shape \(3, 3\)"):
        ensemble_fields(file, VARIABLES, LEADS).read(0, 0, np.empty((3, 2, 5, 8), np.float32))


def test_analyses_are_forecasts_of_lead_time_0(writer, tmp_path):
    path = writer.forecast(tmp_path / "truth", ("2t", "z@500"), leads=(0, 24), numbers=(0,))
    fields = analysis_fields(path, [Variable("z", 500), Variable("2t")])
    assert fields.lead_times == (0,)
    assert fields.numbers == (0,)
    assert fields.init_times.astype("datetime64[Y]").astype(str).tolist() == ["1998", "1999"]
    dataset = open_analysis(path, chunks=None)
    out = np.empty((1, 2, 5, 8), np.float32)
    for k in range(2):
        fields.read(k, 0, out)
        np.testing.assert_array_equal(out[0, 0], select_variable(dataset, Variable("z", 500))[k])
        np.testing.assert_array_equal(out[0, 1], dataset["2t"][k])


def test_files_in_several_units_are_read_in_one(writer, tmp_path):
    one = writer.forecast(tmp_path / "one", ("tp",), years=(1998,))
    two = writer.forecast(tmp_path / "two", ("tp",), years=(1999,))
    content = bytearray(two.read_bytes())
    length = int.from_bytes(content[4:7], "big")
    for start in range(0, len(content), length):
        content[start + 11], content[start + 16] = 228, 228  # table and number of tp in kg m-2
    two.write_bytes(content)
    fields = ensemble_fields([one, two], [Variable("tp")], [24])
    assert fields.meanings[0].units == "m"
    out = np.empty((3, 1, 5, 8))
    for position, factor in enumerate((1, 1e-3)):
        fields.read(position, 0, out)
        expected = [factor * writer.value(Variable("tp"), 1998 + position, 24, number) for number in (1, 2, 3)]
        np.testing.assert_allclose(out[:, 0], expected, rtol=1e-5)


def test_pickled_fields_are_read_by_many_threads(file, monkeypatch):
    monkeypatch.setattr(BUDGET, "_total", 5)
    monkeypatch.setattr(source, "MIN_THREAD_BYTES", 1)
    fields = pickle.loads(pickle.dumps(ensemble_fields(file, VARIABLES, LEADS)))
    expected = {(i, j): by_xarray(file, i, j) for i in range(2) for j in range(2)}

    def check(k):
        out = np.empty((3, 3, 5, 8), np.float32)
        fields.read(k % 2, k // 2 % 2, out)
        return np.array_equal(out, expected[k % 2, k // 2 % 2])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(64)))


def test_arrays_larger_than_the_memory_are_refused(file, monkeypatch):
    dataset = open_ensemble(file, VARIABLES, LEADS, chunks=None)
    monkeypatch.setattr(datasets, "MACHINE_BYTES", 12 * 5 * 8 * 4 - 1)
    sentence = (
        r"12 fields of 5 x 8 points take 0\.0 GB, this machine has 0\.0 GB; choose a part of them, or open the files"
    )
    with pytest.raises(InputError, match=sentence):
        dataset["2t"].load()
    assert dataset["2t"].isel(init_time=0).load().shape == (2, 3, 5, 8)
