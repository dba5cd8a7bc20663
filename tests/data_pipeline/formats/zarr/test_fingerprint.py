"""The fingerprint of an archive of stores: contents count, place and time do not."""

import os
import shutil
import zipfile

import numcodecs
import pytest

from data_pipeline.archive import Archive

ONE = {"time": 1, "prediction_timedelta": 1}


def fingerprint(path):
    return Archive([str(path)], [str(path)]).fingerprint


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_copy_has_the_same_fingerprint(stores, tmp_path, zarr_format):
    path = stores.write(stores.weatherbench2(), tmp_path / "here/a.zarr", zarr_format, chunks=ONE)
    copy = shutil.copytree(path, tmp_path / "there/a.zarr", copy_function=shutil.copyfile)
    for file in copy.rglob("*"):
        os.utime(file, (0, 0))
    assert fingerprint(copy) == fingerprint(path)


@pytest.mark.parametrize("change", ["chunk", "lost", "units", "time"])
def test_a_change_of_contents_changes_the_fingerprint(stores, tmp_path, change):
    dataset = stores.weatherbench2()
    path = stores.write(dataset, tmp_path / "a.zarr", chunks=ONE, compressors=numcodecs.Zstd())
    before = fingerprint(path)
    chunk = path / "temperature/0.1.0.0.0.0"
    if change == "chunk":
        chunk.write_bytes(chunk.read_bytes() + b" ")
    elif change == "lost":
        chunk.unlink()
    elif change == "units":
        text = (path / ".zmetadata").read_text()
        (path / ".zmetadata").write_text(text.replace('"units": "K"', '"units": "degC"'))
    else:
        stores.write(dataset.isel(time=[0, 1]), path, chunks=ONE, compressors=numcodecs.Zstd())
    assert fingerprint(path) != before


def test_a_zip_file_is_hashed_like_any_file(stores, tmp_path):
    folder = stores.write(stores.weatherbench2(), tmp_path / "a.zarr")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder))
    before = fingerprint(tmp_path / "a.zip")
    shutil.copyfile(tmp_path / "a.zip", tmp_path / "b.zip")
    (tmp_path / "b.zip").replace(tmp_path / "a.zip")
    assert fingerprint(tmp_path / "a.zip") == before
