"""A chunk that does not exist is never a value: its fields are missing or refused, and the user is told."""

import warnings

import numpy as np
import pytest
import zarr

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_contents import summarize_files
from data_pipeline.formats.open import ensemble_fields, open_ensemble
from data_pipeline.formats.zarr.zarr_catalog import ZarrCatalog
from data_pipeline.task import Variable

T = [Variable("t", 500), Variable("t", 850)]
ONE = {"time": 1, "prediction_timedelta": 1}
ALONG = {2: "{}.{}.0.0.0.0", 3: "c/{}/{}/0/0/0/0"}


@pytest.fixture(params=[2, 3])
def store(request, stores, tmp_path):
    """A store with one chunk for each start and lead time, and the file of a chunk of temperature."""
    dataset = stores.weatherbench2()
    path = stores.write(dataset, tmp_path / "ens.zarr", request.param, chunks=ONE)
    return path, lambda *position: path / "temperature" / ALONG[request.param].format(*position)


def test_fields_without_chunks_are_missing(store, stores):
    path, chunk = store
    chunk(1, 0).unlink()
    with (
        pytest.warns(UserWarning, match="8 of 48 fields were never written .* t@500 of 2016-01-05T00:00 [+] 0 h"),
        pytest.raises(InputError, match=r"lacks t@500 at init_time 2016-01-05T00:00, .* first of 8 missing fields"),
    ):
        ensemble_fields(path, T, [0, 24])
    with pytest.warns(UserWarning, match="never written"):
        found = open_ensemble(path, T, missing="mask")["t"].values
    expected = stores.expected(stores.weatherbench2(), "temperature")
    expected[1, 0] = np.nan
    np.testing.assert_array_equal(found, expected)


def test_a_start_that_was_never_written_is_no_start_and_a_variable_without_chunks_is_refused(store):
    """A store may have been made for more starts than were written, as real-time archives are."""
    path, chunk = store
    for lead in range(2):
        chunk(2, lead).unlink()
    with pytest.warns(UserWarning, match="16 of 48 fields were never written"):
        fields = ensemble_fields(path, T, [0, 24])
    assert len(fields.init_times) == 2
    for start, lead in np.ndindex(2, 2):
        chunk(start, lead).unlink()
    with pytest.raises(InputError, match="has no values of t@500: none of its 24 fields was ever written"):
        open_ensemble(path, T)


def test_missing_parts_of_a_field_are_missing_values(stores, tmp_path):
    """Sea-surface temperature over land has no chunks: fill value NaN says that nothing is there."""
    dataset = stores.weatherbench2()[["temperature"]]
    path = stores.write(dataset, tmp_path / "sst.zarr", chunks=ONE | {"longitude": 4})
    (path / "temperature/0.1.0.0.1.0").unlink()
    with pytest.warns(UserWarning, match="lacks its chunk temperature/0.1.0.0.1.0, so its values are missing"):
        found = open_ensemble(path, T)["t"].values
    expected = stores.expected(dataset, "temperature")
    expected[0, 1, ..., :4] = np.nan  # columns from 0 degrees, the second half of the file
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("longitude", [4, 8])
def test_an_ordinary_fill_value_is_never_read(stores, tmp_path, longitude):
    """In format 3, fill value 0 is an honest number: no rain, or nothing there. Its fields are missing."""
    dataset = stores.weatherbench2()[["temperature"]]
    path = stores.write(dataset, tmp_path / "z.zarr", 3, chunks=ONE | {"longitude": longitude})
    metadata = (path / "zarr.json").read_text()
    for old, new in (('"fill_value": "NaN"', '"fill_value": 0.0'), ('"_FillValue": "AAAAAAAA+H8="', '"a": 1')):
        assert old in metadata
        metadata = metadata.replace(old, new)
    (path / "zarr.json").write_text(metadata)
    (path / "temperature/c/0/1/0/0/0/0").unlink()
    with pytest.warns(UserWarning, match="8 of 48 fields were never written"):
        found = open_ensemble(path, T, missing="mask")["t"].values
    assert np.isnan(found[0, 1]).all()
    np.testing.assert_array_equal(found[1:], stores.expected(dataset, "temperature")[1:])


def test_a_chunk_that_a_shard_lacks(stores, tmp_path):
    """Which chunks a shard has is known when it is read: missing values with a warning, or a refusal."""
    for fill_value in (np.nan, 0.0):
        path = tmp_path / f"{fill_value}.zarr"
        dataset = stores.weatherbench2()[["temperature"]]
        values = dataset.temperature.values.copy()
        values[1, 1] = fill_value
        sizes = {"chunks": (1, 1, 4, 2, 8, 5), "shards": (3, 2, 4, 2, 8, 5)}
        stores.write(dataset.drop_vars("temperature"), path, 3, consolidated=False)
        names = dataset.temperature.dims
        array = zarr.open_group(path, mode="a").create_array(
            "temperature", shape=values.shape, dtype="f4", fill_value=fill_value, dimension_names=names, **sizes
        )
        array.attrs["units"] = "K"
        array[...] = values
        if np.isnan(fill_value):
            with pytest.warns(UserWarning, match="lacks its chunk temperature/c/0/0/0/0/0/0"):
                found = open_ensemble(path, T)["t"].values
            assert np.isnan(found[1, 1]).all()
            assert not np.isnan(found[1, 0]).any()
        else:
            with pytest.raises(InputError, match=r"lacks its chunk .*, for which Zarr gives 0.0 everywhere"):
                open_ensemble(path, T).compute()
            np.testing.assert_array_equal(
                open_ensemble(path, T)["t"][1, 0].values, stores.expected(dataset, "temperature")[1, 0]
            )


def test_a_single_lead_time_of_zero_hours_has_no_chunk(stores, tmp_path):
    """Writers omit chunks of zeros; several equal values are no coordinate."""
    dataset = stores.weatherbench2(prediction_timedelta=1)
    path = stores.write(dataset, tmp_path / "ens.zarr")
    assert not (path / "prediction_timedelta/0").exists()
    with pytest.warns(UserWarning, match="lacks its chunk prediction_timedelta/0, for which Zarr gives 0"):
        assert open_ensemble(path).lead_time.values.tolist() == [0]
    (path / "level/0").unlink()
    with pytest.raises(InputError, match=r"ens.zarr \(level\) lacks its chunk level/0"):
        open_ensemble(path)


def test_the_summary_counts_fields_without_chunks(store):
    path, chunk = store
    with warnings.catch_warnings(action="error"):
        assert "unwritten" not in summarize_files(path, catalog=ZarrCatalog)
        open_ensemble(path).compute()
    chunk(1, 0).unlink()
    lines = dict(line.split(None, 1) for line in summarize_files(path, catalog=ZarrCatalog).splitlines())
    assert lines["unwritten"] == "8 fields whose chunks do not exist"
    assert lines["missing"] == "8 of 72", "24 fields of 2t, 48 of t"
    assert lines["fields"].startswith("72,")
