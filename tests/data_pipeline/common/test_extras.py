"""A package that a slim installation lacks is named in one sentence; a missing file of our own stays a bug."""

import builtins
import sys
import threading

import netCDF4
import pytest
from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK

from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.formats.netcdf.file import NetCDFFile
from data_pipeline.formats.open import open_ensemble


@pytest.fixture
def without(monkeypatch):
    """Hide packages from imports."""
    original = builtins.__import__

    def hide(*names):
        def search(name, *arguments):
            if name.partition(".")[0] in names:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return original(name, *arguments)

        monkeypatch.setattr(builtins, "__import__", search)

    return hide


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.nc"
    netCDF4.Dataset(path, "w").close()
    return NetCDFFile.at(path)


def test_a_missing_package_is_named_with_its_extra(without, file):
    without("netCDF4")
    sentence = r"^reading NetCDF needs the package netCDF4, .* run: pip install 'deepweather\[netcdf\]'$"
    with pytest.raises(InputError, match=sentence), file.open():
        pass


def test_zarr_needs_the_packages_of_training(without, monkeypatch, tmp_path):
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "zarr.json").write_text("{}")
    without("zarr", "fsspec", "numcodecs")
    loaded = [name for name in sys.modules if name.startswith("data_pipeline.formats.zarr.")]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match=r"^reading Zarr needs the package \w+, .*'deepweather\[train\]'$"):
        open_ensemble(tmp_path / "a.zarr")


def test_a_missing_file_of_this_project_is_a_bug():
    with pytest.raises(ModuleNotFoundError), package("everything", "train"):
        import models.no_such_file  # noqa: F401


def test_an_open_file_holds_the_lock_of_xarray(file):
    """Only one thread may use the library, also if another one reads by xarray."""
    found = []
    with file.open():
        thread = threading.Thread(target=lambda: found.append(NETCDF4_PYTHON_LOCK.acquire(blocking=False)))
        thread.start()
        thread.join()
    assert found == [False]
