"""Stores on a web server, and the errors of servers."""

import multiprocessing
import os
import warnings

import numpy as np
import pytest
from web_server import Handler

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_contents import summarize_files
from data_pipeline.formats.open import ensemble_fields, open_analysis, open_ensemble
from data_pipeline.formats.zarr.zarr_catalog import ZarrCatalog
from data_pipeline.formats.zarr.zarr_store import _opened
from data_pipeline.task import Variable

T = [Variable("t", 500), Variable("t", 850)]
ONE = {"time": 1, "prediction_timedelta": 1}


@pytest.mark.parametrize(("zarr_format", "compressors"), [(2, "auto"), (3, None)])
def test_a_store_on_a_web_server_that_fails_for_a_while(stores, tmp_path, server, zarr_format, compressors):
    dataset = stores.weatherbench2()
    stores.write(dataset, tmp_path / "ens.zarr", zarr_format, chunks=ONE, compressors=compressors)
    chunk = "1.1.0.0.0.0" if zarr_format == 2 else "c/1/1/0/0/0/0"
    Handler.faults[f"/ens.zarr/temperature/{chunk}"] = 503, 1
    found = open_ensemble(f"{server}/ens.zarr").load()
    assert Handler.requested.count(f"/ens.zarr/temperature/{chunk}") == 2
    np.testing.assert_array_equal(found["t"].values, stores.expected(dataset, "temperature"))
    np.testing.assert_array_equal(found["2t"].values, stores.expected(dataset, "2m_temperature"))


def read_in_fork(fields):
    """Return one sample, and the number of stores that the process has opened."""
    fields.read(fields.cells[1, 1], out := np.zeros((4, 2, 5, 8), np.float32))
    return out, _opened.cache_info().misses


def test_opening_reads_no_fields_and_a_forked_process_makes_its_own_connections(stores, tmp_path, server):
    stores.write(stores.weatherbench2(), tmp_path / "ens.zarr", chunks=ONE)
    fields = ensemble_fields(f"{server}/ens.zarr/", T, [0, 24])
    assert not [path for path in Handler.requested if "temperature/" in path]
    expected, opened = read_in_fork(fields)
    assert [path for path in Handler.requested if "temperature/" in path] == ["/ens.zarr/temperature/1.1.0.0.0.0"]
    with (
        warnings.catch_warnings(action="ignore", category=DeprecationWarning),
        multiprocessing.get_context("fork").Pool(2) as pool,
    ):
        for found, count in pool.map_async(read_in_fork, [fields] * 2, 1).get(timeout=60):
            np.testing.assert_array_equal(found, expected)
            assert count > opened


def test_shards_are_requested_in_parts(stores, tmp_path, server):
    """Also from a server that ignores the request for a part, as this one does."""
    dataset = stores.weatherbench2()[["temperature"]]
    stores.write(dataset, tmp_path / "s.zarr", 3, chunks=ONE, shards=dataset.temperature.shape)
    found = open_ensemble(f"{server}/s.zarr")["t"].values
    np.testing.assert_array_equal(found, stores.expected(dataset, "temperature"))


@pytest.mark.parametrize("code", [403, 500])
def test_a_server_that_refuses(stores, tmp_path, server, code):
    stores.write(stores.weatherbench2(), tmp_path / "ens.zarr", chunks=ONE)
    Handler.faults["/ens.zarr/temperature/1.1.0.0.0.0"] = code, 99
    address = f"{server}/ens.zarr/temperature/1.1.0.0.0.0".replace(".", "[.]")
    with pytest.raises(InputError, match=rf"^cannot read {address} \(HTTP {code} .*\); try again later$"):
        open_ensemble(f"{server}/ens.zarr").compute()
    assert Handler.requested.count("/ens.zarr/temperature/1.1.0.0.0.0") == (1 if code == 403 else 3)


def test_a_chunk_that_the_server_lacks(stores, tmp_path, server):
    path = stores.write(stores.weatherbench2(), tmp_path / "ens.zarr", chunks=ONE)
    (path / "temperature/1.1.0.0.0.0").unlink()
    with pytest.warns(UserWarning, match=r"lacks its chunk temperature/1.1.0.0.0.0, so its values are missing"):
        found = open_ensemble(f"{server}/ens.zarr")["t"].values
    assert np.isnan(found[1, 1]).all()
    assert np.isnan(found).sum() == found[1, 1].size


def test_no_store_at_an_address(stores, tmp_path, server):
    with pytest.raises(InputError, match=r"nothing.zarr is no group of arrays; name the store"):
        open_ensemble(f"{server}/nothing.zarr")
    with pytest.raises(InputError, match=r"cannot open strange://host/a.zarr .* check the URL"):
        open_ensemble("strange://host/a.zarr")
    with pytest.raises(InputError, match=r"http://127.0.0.1:9/a.zarr cannot be read .*"):
        open_ensemble("http://127.0.0.1:9/a.zarr")
    Handler.faults["/ens.zarr/zarr.json"] = Handler.faults["/ens.zarr/.zgroup"] = 500, 99
    stores.write(stores.weatherbench2(), tmp_path / "ens.zarr")
    with pytest.raises(InputError, match=r"ens.zarr cannot be read \(.*500"):
        open_ensemble(f"{server}/ens.zarr")


def test_an_archive_of_addresses(stores, tmp_path, server):
    """Format and summary need no folder."""
    stores.write(stores.weatherbench2(), tmp_path / "ens.zarr", chunks=ONE)
    stores.write(stores.arco(), tmp_path / "era5.zarr", chunks={"time": 1})
    archive = Archive([f"{server}/ens.zarr"], [f"{server}/era5.zarr"])
    assert archive.exists
    text = archive.format_of("ensemble").summarize(archive.ensemble, None)
    assert "files        1, of unknown size" in text
    assert "members      0 1 2 3" in text
    assert summarize_files(f"{server}/era5.zarr", catalog=ZarrCatalog).startswith("files")
    assert open_analysis(archive.analysis, T)["t"].shape == (3, 2, 5, 8)


@pytest.mark.parametrize("tells", ["date", "tag", "nothing"])
def test_the_fingerprint_changes_with_values_of_the_same_size(stores, tmp_path, server, monkeypatch, tells):
    monkeypatch.setattr(Handler, "tells", tells)
    dataset = stores.arco(time=1)[["2m_temperature"]]

    def fingerprint(warmer, seconds):
        path = stores.write(dataset + warmer, tmp_path / "a.zarr", compressors=None)
        for file in path.rglob("*"):
            os.utime(file, (seconds, seconds))
        return Archive([f"{server}/a.zarr"], [f"{server}/a.zarr"]).fingerprint

    first = fingerprint(0, 1)
    assert fingerprint(50, 2 if tells == "date" else 1) != first
    assert (fingerprint(0, 3) == first) == (tells != "date")
