"""A sound file of another format is called by its format, by every reader."""

import bz2
import gzip
import lzma
import tarfile
import zipfile

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from weather_files import weather, write_grib

from data_pipeline.common.errors import InputError
from data_pipeline.common.file_format import UNKNOWN_FORMAT, file_format, wrong_format
from data_pipeline.formats.netcdf.netcdf_catalog import NetCDFCatalog
from data_pipeline.formats.open import open_analysis, open_ensemble
from data_pipeline.grid import Grid
from data_pipeline.statistics.statistic_file import load_statistic
from models.corrected_files.input_files import InputFiles
from models.corrector import Corrector

NAMES = {
    "zip": "a zip archive", "npz": "a zip archive", "gz": "compressed with gzip", "bz2": "compressed with bzip2",
    "xz": "compressed with xz", "tar": "a tar archive", "npy": "an array of NumPy", "safetensors": "safetensors",
    "html": "a web page", "xml": "XML", "json": "JSON", "csv": "a table of text (CSV)", "txt": "text",
    "pdf": "a PDF document", "bufr": "BUFR", "lfs": "a pointer of Git LFS", "h5": "HDF5", "nc": "NetCDF",
    "grib": "GRIB", "heading": "GRIB",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One file of each format, under a name that tells nothing; made by the format's own library where there is one."""
    folder = tmp_path_factory.mktemp("formats")
    fields = weather(levels=(), grid=Grid.regular(3, 4))["analysis"]
    fields.to_netcdf(folder / "nc", format="NETCDF3_CLASSIC")
    write_grib(folder / "grib", "analysis", fields)
    grib = (folder / "grib").read_bytes()
    (folder / "heading").write_bytes(b"\1\r\r\nHTXE85 ECMF 010000\r\r\n" + grib)
    with zipfile.ZipFile(folder / "zip", "w") as archive:
        archive.writestr("a.grib", grib)
    for name, library in (("gz", gzip), ("bz2", bz2), ("xz", lzma)):
        (folder / name).write_bytes(library.compress(grib))
    with tarfile.open(folder / "tar", "w") as archive:
        archive.add(folder / "grib", "grib")
    for name, save in (("npy", np.save), ("npz", np.savez)):
        with (folder / name).open("wb") as file:
            save(file, np.zeros(5))
    save_file({"a": torch.zeros(3)}, folder / "safetensors")
    texts = {
        "html": "\n<!DOCTYPE html>\n<html><title>503</title></html>", "xml": '<?xml version="1.0"?><Error/>',
        "json": '{"message": "not found"}', "csv": "time,2t\n2020-01-01,280.1\n2020-01-02,281\n",
        "txt": "Grüße aus Reading\nohne Felder\n",
        "lfs": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
        "pdf": "%PDF-1.7\n", "bufr": "BUFR\0\0\x20\4",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    with h5py.File(folder / "h5", "w") as file:
        file["temperature"] = np.zeros((3, 4))
    return folder


def test_every_format_is_named(files):
    assert {path.name: str(file_format(path)) for path in files.iterdir()} == NAMES


READ = ("GRIB", "NetCDF", "HDF5", "a table of text (CSV)", "Parquet")


@pytest.mark.parametrize("name", [name for name, found in NAMES.items() if found not in READ])
def test_every_reader_names_the_format(files, name):
    path = files / name
    for read, wanted in (
        (open_ensemble, "GRIB"),
        (InputFiles.find, "GRIB or NetCDF"),
        (lambda path: NetCDFCatalog.gather([path], None, None), "NetCDF"),
        (lambda path: load_statistic(path, "efi"), "a statistic"),
        (Corrector.load, "a corrector" if name != "safetensors" else "tensors but no corrector"),
    ):
        with pytest.raises(InputError) as refused:
            read(str(path))
        assert str(path) in str(refused.value)
        if wanted == "tensors but no corrector":
            assert wanted in str(refused.value)
        else:
            assert f"is {NAMES[name]}, not {wanted}" in str(refused.value)


def test_a_file_of_the_other_format_is_named(files):
    with pytest.raises(InputError, match="grib is GRIB, not NetCDF"):
        open_analysis([files / "nc", files / "grib"])
    with pytest.raises(InputError, match="nc is NetCDF, not GRIB"):
        open_ensemble([files / "grib", files / "nc"])
    with pytest.raises(InputError, match="grib is GRIB, not a corrector"):
        Corrector.load(files / "grib")
    with pytest.raises(InputError, match="h5 is HDF5 without the dimensions of NetCDF-4"):
        open_ensemble(files / "h5")


def test_zarr_and_plain_folders(tmp_path):
    assert file_format(tmp_path).name == "a folder"
    (tmp_path / "zarr.json").write_text("{}")
    assert file_format(tmp_path).name == "a Zarr store"


def test_a_file_that_tells_nothing_or_is_empty(tmp_path):
    noise, empty = tmp_path / "noise", tmp_path / "empty"
    noise.write_bytes(bytes(range(255, 0, -1)))
    empty.touch()
    assert file_format(noise) is UNKNOWN_FORMAT
    assert str(wrong_format(noise, "GRIB")) == f"{noise} is not GRIB; check the path, or fetch the file again"
    assert str(wrong_format(empty, "GRIB")) == f"{empty} is empty; fetch the file again"
