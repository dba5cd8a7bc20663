"""The same field twice in an archive is compared once; a changed file is compared again."""

import numpy as np
import pytest
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_catalog import BlockCatalog
from data_pipeline.formats.grib.grib_catalog import MessageCatalog
from data_pipeline.formats.open import open_analysis, open_ensemble
from data_pipeline.formats.reader_versions import READER_VERSIONS
from data_pipeline.grid import Grid
from data_pipeline.writing import Encoder

GRID = Grid.regular(3, 4)


@pytest.fixture
def compared(monkeypatch, tmp_path):
    """An empty cache folder, and the pairs of fields that were compared."""
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "cache"))
    pairs = []
    for catalog in (MessageCatalog, BlockCatalog):
        compare = catalog.refuse_contradiction

        def note(self, first, second, compare=compare):
            pairs.append((first, second))
            return compare(self, first, second)

        monkeypatch.setattr(catalog, "refuse_contradiction", note)
    return pairs


def write_grib(path, value=280.0):
    encoder = Encoder(GRID, shortName="2t", typeOfLevel="surface", type="an")
    path.write_bytes(b"".join(encoder.encode(np.full((3, 4), value + k), dataDate=20200101 + k) for k in range(5)))
    return path


def write_netcdf(path, value=280.0):
    fields = xr.DataArray(
        np.full((5, 3, 4), value, "f4"), {"time": np.arange(5) * 24.0, "latitude": [90.0, 0, -90],
        "longitude": [0.0, 90, 180, 270]}, ("time", "latitude", "longitude"), attrs={"units": "K"},
    )  # fmt: skip
    fields.time.attrs["units"] = "hours since 2020-01-01"
    fields.to_dataset(name="t2m").to_netcdf(path)
    return path


@pytest.mark.parametrize("write", [write_grib, write_netcdf])
def test_repeated_fields_are_compared_once(compared, tmp_path, write, monkeypatch):
    files = [write(tmp_path / "a"), write(tmp_path / "b")]
    first = open_analysis(files).load()
    assert len(compared) == 5
    assert first.equals(open_analysis(files).load())
    assert len(compared) == 5
    open_analysis([*files, write(tmp_path / "c")])  # other files
    assert len(compared) == 5 + 10
    monkeypatch.setitem(READER_VERSIONS, "grib", 99)
    open_analysis(files)
    assert len(compared) == 5 + 10 + 5
    files[1].unlink()
    write(files[1], 281.0)
    for _ in range(2):
        with pytest.raises(InputError, match="both hold 2t for the same time and member"):
            open_analysis(files)
    assert len(compared) == 5 + 10 + 5 + 2


def test_an_archive_without_repeated_fields_leaves_nothing(compared, tmp_path):
    open_ensemble(write_grib(tmp_path / "a"))
    assert not (tmp_path / "cache/equal").exists()
