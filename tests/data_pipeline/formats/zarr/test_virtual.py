"""Chunks in other files: references of kerchunk, and snapshots of Icechunk, equal the files' own values."""

import base64
import json
import multiprocessing
import os
import pickle
import warnings

import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from virtual_chunks import references_of
from web_server import Handler

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import Url, expand_addresses
from data_pipeline.formats.content_hash import content_hashes
from data_pipeline.formats.open import ensemble_fields, open_analysis, open_ensemble
from data_pipeline.formats.zarr.detection import split_address
from data_pipeline.grid import Grid
from data_pipeline.task import Variable
from data_pipeline.writing import Encoder

icechunk = pytest.importorskip("icechunk")
T = [Variable("t", 500), Variable("t", 850)]
ONE = {"time": 1, "prediction_timedelta": 1}
FIRST = "temperature/0.0.0.0.0.0"


@pytest.fixture
def virtual(stores, tmp_path):
    """A data set, its Zarr store, and the references to the chunks of the store."""
    dataset = stores.weatherbench2()
    folder = stores.write(dataset, tmp_path / "data.zarr", chunks=ONE, compressors=None)
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": references_of(folder)}))
    return dataset, folder, path


def to_parquet(path, refs, record=5):
    """Write references in Parquet, `record` of them in a file: a row for each chunk, without values for absent ones."""
    metadata = {key: json.loads(text) for key, text in refs.items() if key.rpartition("/")[2].startswith(".z")}
    path.mkdir()
    (path / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": record}))
    for key, about in metadata.items():
        if not key.endswith("/.zarray"):
            continue
        (folder := path / key.removesuffix("/.zarray")).mkdir()
        counts = [-(-n // k) for n, k in zip(about["shape"], about["chunks"], strict=True)]
        rows = []
        for place in np.ndindex(*counts):
            found = refs.get(f"{folder.name}/{'.'.join(map(str, place)) or '0'}", "")
            raw = base64.b64decode(found[7:]) if isinstance(found, str) and found else None
            rows.append((*(found if isinstance(found, list) else (None, 0, 0)), raw))
        for k in range(0, len(rows), record):
            frame = pd.DataFrame(rows[k : k + record], columns=["path", "offset", "size", "raw"])
            frame = frame.astype({"path": object, "raw": object})
            frame.to_parquet(
                folder / f"refs.{k // record}.parq", engine="fastparquet", index=False,
                object_encoding={"raw": "bytes", "path": "utf8"}, has_nulls=["path", "raw"],
            )  # fmt: skip
    return path


def to_icechunk(dataset, path, group=None, chunks=ONE):
    """Commit a data set to a repository; return the ID of the snapshot."""
    repository = icechunk.Repository.open_or_create(icechunk.local_filesystem_storage(str(path)))
    session = repository.writable_session("main")
    sizes = {name: [min(chunks.get(d, n), n) for d, n in array.sizes.items()] for name, array in dataset.items()}
    with warnings.catch_warnings(action="ignore"):
        encoding = {name: {"chunks": each} for name, each in sizes.items()}
        dataset.to_zarr(session.store, group=group, mode="w", encoding=encoding, zarr_format=3, consolidated=False)
    return session.commit("all")


def fingerprint(address):
    return Archive([address], [address]).fingerprint


def same(stores, found, dataset):
    np.testing.assert_array_equal(found["t"].values, stores.expected(dataset, "temperature"))
    np.testing.assert_array_equal(found["2t"].values, stores.expected(dataset, "2m_temperature"))


def test_references_in_json_parquet_and_at_urls(stores, virtual, tmp_path, server):
    dataset, folder, path = virtual
    same(stores, open_ensemble(path), dataset)
    same(stores, open_ensemble(f"reference::{path}"), dataset)
    same(stores, open_ensemble(f"{server}/refs.json"), dataset)
    to_parquet(tmp_path / "refs.parq", references_of(folder))
    same(stores, open_ensemble(tmp_path / "refs.parq"), dataset)
    (tmp_path / "far.json").write_text(json.dumps({"version": 1, "refs": references_of(folder, f"{server}/data.zarr")}))
    same(stores, open_ensemble(tmp_path / "far.json"), dataset)
    assert f"/data.zarr/{FIRST}" in Handler.requested


def test_references_to_parts_of_a_netcdf_file(tmp_path):
    field = np.arange(48, dtype=">f4").reshape(2, 4, 6)
    time = ("time", np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]"))
    axes = {"time": time, "latitude": [30.0, 20.0, 10.0, 0.0], "longitude": np.arange(6) * 60.0}
    dataset = xr.Dataset({"t2m": (("time", "latitude", "longitude"), field, {"units": "K"})}, axes)
    dataset.to_netcdf(tmp_path / "a.nc", format="NETCDF3_64BIT")
    with warnings.catch_warnings(action="ignore"):
        dataset.to_zarr(
            tmp_path / "a.zarr", zarr_format=2, encoding={"t2m": {"chunks": (1, 4, 6), "compressors": None}}
        )
    refs = references_of(tmp_path / "a.zarr")
    start = (tmp_path / "a.nc").read_bytes().index(field.tobytes())
    refs |= {f"t2m/{k}.0.0": [f"file://{tmp_path}/a.nc", start + 96 * k, 96] for k in range(2)}
    (tmp_path / "a.json").write_text(json.dumps(refs))
    np.testing.assert_array_equal(open_analysis(tmp_path / "a.json")["2t"].values, field)


def test_references_to_grib_messages(tmp_path):
    """9999 is a value, and only points without a value are missing."""
    grid = Grid.regular(4, 6)
    values = 9990.0 + np.arange(24).reshape(4, 6)
    values[2, 3] = np.nan
    encoder = Encoder(grid, centre="ecmf", type="an", dataDate=20200101, bitsPerValue=16)
    messages = [encoder.encode(values + k, shortName="z", typeOfLevel="isobaricInhPa", level=1000) for k in (0, 100)]
    (tmp_path / "a.grib").write_bytes(b"".join(messages))
    axes = {"time": np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]"), "latitude": list(grid.latitudes)}
    axes |= {"longitude": list(grid.longitudes), "isobaricInhPa": ((), 1000.0, {"units": "hPa", "positive": "down"})}
    dataset = xr.Dataset({"z": (("time", "latitude", "longitude"), np.zeros((2, 4, 6)), {"units": "m2 s-2"})}, axes)
    with warnings.catch_warnings(action="ignore"):
        dataset.to_zarr(tmp_path / "a.zarr", zarr_format=2, encoding={"z": {"chunks": (1, 4, 6), "compressors": None}})
    refs = references_of(tmp_path / "a.zarr")
    metadata = json.loads(refs["z/.zarray"]) | {"filters": [{"id": "grib", "var": "z", "dtype": "float64"}]}
    refs["z/.zarray"] = json.dumps(metadata | {"fill_value": None})
    refs["z/0.0.0"] = [str(tmp_path / "a.grib"), 0, len(messages[0])]
    refs["z/1.0.0"] = [str(tmp_path / "a.grib"), len(messages[0]), len(messages[1])]
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, "refs": refs}))
    found = open_analysis(tmp_path / "a.json")["z"].squeeze().values
    np.testing.assert_allclose(found, [values, values + 100], atol=0.01)


def test_the_fingerprint_of_references_has_the_bytes_to_which_they_point(stores, virtual, tmp_path, server):
    _, folder, path = virtual
    far = tmp_path / "far.json"
    far.write_text(json.dumps({"version": 1, "refs": references_of(folder, f"{server}/data.zarr")}))
    before, far_before = fingerprint(path), fingerprint(far)
    moved = folder.rename(tmp_path / "moved.zarr")
    path.write_text(json.dumps({"version": 1, "refs": references_of(moved)}))
    assert fingerprint(path) == before
    chunk = moved / FIRST
    content = bytearray(chunk.read_bytes())
    content[100] ^= 1
    chunk.write_bytes(content)
    assert fingerprint(path) != before
    os.utime(chunk, (1, 1))
    moved.rename(folder)
    assert fingerprint(far) != far_before


@pytest.mark.parametrize("parquet", [False, True])
def test_chunks_without_references_are_missing_and_lost_files_are_errors(stores, virtual, tmp_path, parquet):
    dataset, folder, path = virtual
    refs = references_of(folder)
    del refs[FIRST]
    path.write_text(json.dumps({"version": 1, "refs": refs}))
    address = to_parquet(tmp_path / "r.parq", refs) if parquet else path
    with pytest.raises(InputError, match=r"lacks t@.* at init_time 2016-01-04"):
        open_ensemble(address, T)
    found = open_ensemble(address, T, missing="mask")["t"].values
    assert np.isnan(found[0, 0]).all()
    np.testing.assert_array_equal(found[1:], stores.expected(dataset, "temperature")[1:])
    (folder / "temperature/1.0.0.0.0.0").unlink()
    with pytest.raises(InputError, match=r"failed to fetch target .*data.zarr/temperature/1.0.0.0.0.0"):
        open_ensemble(address, T, missing="mask").compute()
    with pytest.raises(InputError, match=r"cannot read .*temperature/1.0.0.0.0.0, to which chunks point"):
        fingerprint(address)
    chunk = folder / "temperature/2.1.0.0.0.0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"chunk temperature/2.1.0.0.0.0 cannot be read \(it is cut off\)"):
        open_ensemble(address, T, missing="mask").isel(init_time=2).compute()


def test_references_in_groups(stores, virtual):
    dataset, folder, path = virtual
    refs = {f"pl/{key}": value for key, value in references_of(folder).items()} | {".zgroup": '{"zarr_format": 2}'}
    path.write_text(json.dumps({"version": 1, "refs": refs}))
    with pytest.raises(InputError, match=rf"in groups \(pl\); name one, such as reference::{path}#pl"):
        open_ensemble(path)
    same(stores, open_ensemble(f"reference::{path}#pl"), dataset)


def test_icechunk_gives_the_same_values_in_folders_groups_and_versions(stores, tmp_path):
    dataset, path = stores.weatherbench2(), tmp_path / "ens.icechunk"
    first = to_icechunk(dataset, path)
    fields = ensemble_fields(path, T, [0, 24])
    second = to_icechunk(dataset + 1, path)
    same(stores, open_ensemble(path), dataset + 1)
    same(stores, open_ensemble(f"icechunk::{path}@{first}"), dataset)
    icechunk.Repository.open(icechunk.local_filesystem_storage(str(path))).create_tag("v1", snapshot_id=first)
    same(stores, open_ensemble(f"icechunk::{path}@v1"), dataset)
    out = np.empty((4, 2, 5, 8), np.float32)
    pickle.loads(pickle.dumps(fields)).read(fields.cells[0, 0], out)
    expected = stores.expected(dataset, "temperature")[0, 0][:, ::-1]
    np.testing.assert_array_equal(out, expected)  # the commit after the opening changes nothing
    with pytest.raises(InputError, match="nothing"):
        open_ensemble(f"icechunk::{path}@nothing")
    to_icechunk(dataset, tmp_path / "groups", group="forecast")
    with pytest.raises(InputError, match=rf"name one, such as icechunk::{tmp_path}/groups#forecast"):
        open_ensemble(tmp_path / "groups")
    same(stores, open_ensemble(f"icechunk::{tmp_path}/groups#forecast"), dataset)
    one, two, last = content_hashes([Url(f"icechunk::{path}@{first}"), Url(f"icechunk::{path}@{second}"), path])
    assert one != two == last


def test_chunks_that_icechunk_lacks_are_missing(stores, tmp_path):
    dataset = stores.weatherbench2()
    to_icechunk(dataset.where(dataset.time != dataset.time[1]), tmp_path / "a.icechunk")
    found = open_ensemble(tmp_path / "a.icechunk", T)
    assert found.init_time.values.tolist() == dataset.time.values[[0, 2]].tolist()
    np.testing.assert_array_equal(found["t"].values, stores.expected(dataset, "temperature")[[0, 2]])


def test_virtual_chunks_of_icechunk(stores, tmp_path):
    """Their files belong to the fingerprint; the snapshot does not say what is in them."""
    dataset, path = stores.weatherbench2()[["temperature"]], tmp_path / "v.icechunk"
    folder = stores.write(dataset, tmp_path / "data.zarr", 3, chunks=ONE, compressors=None)
    prefix, settings = f"file://{folder}/", icechunk.RepositoryConfig.default()
    container = icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(folder)))
    settings.set_virtual_chunk_container(container)
    settings.inline_chunk_threshold_bytes = 0
    storage = icechunk.local_filesystem_storage(str(path))
    repository = icechunk.Repository.create(storage, settings, authorize_virtual_chunk_access={prefix: None})
    repository.save_config()
    session = repository.writable_session("main")
    encoding = {"temperature": {"chunks": (1, 1, 4, 2, 8, 5), "compressors": None}}
    with warnings.catch_warnings(action="ignore"):
        dataset.to_zarr(session.store, encoding=encoding, zarr_format=3, consolidated=False)
    for place in np.ndindex(3, 2):
        key = "temperature/c/" + "/".join(map(str, (*place, 0, 0, 0, 0)))
        size = (folder / key).stat().st_size
        session.store.set_virtual_ref(key, f"{prefix}{key}", offset=0, length=size)
    session.commit("virtual")
    found = open_ensemble(path)["t"].values
    np.testing.assert_array_equal(found, stores.expected(dataset, "temperature"))
    before = fingerprint(path)
    (folder / key).write_bytes(bytes(size))
    assert fingerprint(path) != before


def read_in_fork(fields, queue):
    try:
        fields.read(fields.cells[1, 1], np.empty((4, 2, 5, 8), np.float32))
    except InputError as error:
        queue.put(str(error))


def test_icechunk_in_a_forked_process_is_refused_instead_of_waiting_forever(stores, tmp_path):
    to_icechunk(stores.weatherbench2(), tmp_path / "a.icechunk")
    fields = ensemble_fields(tmp_path / "a.icechunk", T, [0, 24])
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        process = context.Process(target=read_in_fork, args=(fields, queue))
        process.start()
    process.join(30)
    assert "a.icechunk cannot be read in a forked process" in queue.get()


def test_icechunk_in_a_bucket(stores, tmp_path, server, monkeypatch):
    """A web server of the folder is what an open bucket of S3 is to a reader; access is what fsspec's settings say."""
    dataset = stores.weatherbench2()
    to_icechunk(dataset, tmp_path / "bucket/a.icechunk")
    monkeypatch.setattr(Handler, "tells", "tag")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"anon": True, "endpoint_url": server})
    same(stores, open_ensemble("s3://bucket/a.icechunk"), dataset)
    with pytest.raises(InputError, match=r"ftp://host/a.icechunk: Icechunk is read from folders, s3:// and gs:// only"):
        open_ensemble("ftp://host/a.icechunk")


def test_addresses_are_no_paths_and_are_taken_apart(tmp_path):
    (tmp_path / "file").touch()
    given = ["https://host/a?b=*/c.zarr", tmp_path / "file", "simplecache::s3://bucket/d.zarr"]
    assert expand_addresses(given) == given
    assert Url("https://host/folder/c.zarr/").name == "c.zarr"
    assert split_address(Url("reference://::https://host/a.json")) == ("https://host/a.json", "", "")
    assert split_address(Url("icechunk::/data/a@v1#pl/t")) == ("/data/a", "v1", "pl/t")
    assert split_address(Url("s3://bucket@home/a.icechunk/")) == ("s3://bucket@home/a.icechunk", "", "")
