"""What is no store, or a damaged one, is refused in one sentence that names it."""

import json
import zipfile

import numcodecs
import numpy as np
import pytest
import zarr

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import ensemble_fields, open_ensemble
from data_pipeline.task import Variable

T = [Variable("t", 500)]
ONE = {"time": 1, "prediction_timedelta": 1}


def refusal(path, *variables):
    """Return the message of the refusal to open or read a store."""
    with pytest.raises(InputError) as caught:
        open_ensemble(path, *variables).compute()
    (line,) = str(caught.value).splitlines()
    return line


def test_what_is_no_store(stores, tmp_path):
    path = stores.write(stores.weatherbench2(), tmp_path / "a.zarr", consolidated=False)
    (tmp_path / "some").mkdir()
    (tmp_path / "b.grib").write_bytes(b"GRIB" + bytes(100))
    zarr.open_group(tmp_path / "empty.zarr", mode="w")
    stores.write(stores.weatherbench2(), tmp_path / "nested.zarr/forecast", consolidated=False)
    zarr.open_group(tmp_path / "nested.zarr", mode="a", zarr_format=2)
    open_ensemble(tmp_path / "nested.zarr/forecast")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("zarr.json", "{}")
    (tmp_path / "a.zip").write_bytes((tmp_path / "a.zip").read_bytes()[:-9])
    for what, sentence in (
        (tmp_path / "some", f"{tmp_path}/some is a folder but no Zarr store; name its files"),
        (tmp_path / "so*", "some, a folder that is no Zarr store; check the path"),
        ([path, tmp_path / "b.grib"], "b.grib is GRIB, not a Zarr store"),
        ([tmp_path / "b.grib", path], "a.zarr is a Zarr store among other files"),
        ([tmp_path / "b.grib", "https://host/a.zarr"], "https://host/a.zarr is a URL, which is for Zarr stores only"),
        (path / "temperature", "temperature is no group of arrays; name the store"),
        (tmp_path / "empty.zarr", "empty.zarr has no arrays"),
        (tmp_path / "nested.zarr", "in groups (forecast); name one, such as "),
        (tmp_path / "a.zip", "a.zip is a damaged zip file"),
    ):
        assert sentence in refusal(what)


def half(content):
    return content[: len(content) // 2]


def unknown_codec(content):
    return content.replace(b'"zstd"', b'"szip"')


ZSTD, CHUNK = numcodecs.Zstd(3), "temperature/1.1.0.0.0.0"
CHECKED, FIRST = [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()], "c/0/0/0/0/0/0"
DAMAGED = [
    (2, ZSTD, ".zmetadata", half, "is damaged: its metadata cannot be read"),
    (3, "auto", "zarr.json", half, "is damaged: its metadata cannot be read"),
    (2, ZSTD, ".zmetadata", unknown_codec, "szip"),
    (3, "auto", "zarr.json", unknown_codec, "szip"),
    *(
        (2, codec, CHUNK, lambda content, kept=kept: content[:kept], f"is damaged: chunk {CHUNK} cannot be read (")
        for codec, kept in ((None, 0), (None, -1), (ZSTD, 10), (numcodecs.Blosc("lz4"), 200), (numcodecs.Zlib(), 0))
    ),
    (
        3,
        CHECKED,
        f"temperature/{FIRST}",
        lambda c: c[:20] + b"??" + c[22:],
        f"chunk temperature/{FIRST} cannot be read",
    ),
    (2, ZSTD, CHUNK, lambda _: ZSTD.encode(np.zeros(7, np.float32)), f"chunk {CHUNK} cannot be read (cannot reshape"),
]
"""Format, codec, file, what happens to it, and the message."""


@pytest.mark.parametrize(("zarr_format", "compressors", "name", "damage", "sentence"), DAMAGED)
def test_damaged_metadata_and_chunks(stores, tmp_path, zarr_format, compressors, name, damage, sentence):
    dataset = stores.weatherbench2()
    path = stores.write(dataset, tmp_path / "a.zarr", zarr_format, chunks=ONE, compressors=compressors)
    (path / name).write_bytes(damage((path / name).read_bytes()))
    message = refusal(path, T)
    assert sentence in message
    assert str(path) in message


def test_a_store_that_changed_after_it_was_opened(stores, tmp_path):
    dataset = stores.weatherbench2()
    path = stores.write(dataset, tmp_path / "a.zarr", chunks=ONE)
    fields = ensemble_fields(path, T, [0, 24])
    out = np.zeros((4, 1, 5, 8), np.float32)
    fields.read(fields.cells[0, 0], out)
    zarr.open_group(path, mode="a")["temperature"].resize((5, 2, 4, 2, 8, 5))
    with pytest.raises(InputError, match=r"a.zarr has changed since it was opened"):
        fields.read(fields.cells[0, 0], out)


def test_chunks_of_unequal_sizes(stores, tmp_path):
    path = stores.write(stores.weatherbench2(), tmp_path / "a.zarr", 3, consolidated=False)
    metadata = json.loads((path / "temperature/zarr.json").read_text())
    metadata["chunk_grid"]["name"] = "rectilinear"
    (path / "temperature/zarr.json").write_text(json.dumps(metadata))
    assert str(path) in refusal(path)
