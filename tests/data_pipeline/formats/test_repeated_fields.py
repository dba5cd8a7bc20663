"""The same field twice in an archive is compared once; a changed file is compared again."""

import numpy as np
import pytest
from weather_files import WRITERS, weather

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_catalog import BlockCatalog
from data_pipeline.formats.grib.grib_catalog import MessageCatalog
from data_pipeline.formats.open import open_analysis, open_ensemble
from data_pipeline.formats.reader_versions import READER_VERSIONS
from data_pipeline.grid import Grid

STARTS = np.arange("2020-01-01", "2020-01-06", dtype="M8[D]").astype("M8[ns]")
ANALYSES = weather(levels=(), starts=STARTS, grid=Grid.regular(3, 4))["analysis"]


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


def write(path, name, warmer=0):
    fields = ANALYSES["2t"]
    WRITERS[name][0](path, "analysis", ANALYSES.assign({"2t": fields.copy(data=fields + warmer)}))
    return path


@pytest.mark.parametrize("name", ["grib", "netcdf 4"])
def test_repeated_fields_are_compared_once(compared, tmp_path, name, monkeypatch):
    files = [write(tmp_path / "a", name), write(tmp_path / "b", name)]
    first = open_analysis(files).load()
    assert len(compared) == 5
    assert first.equals(open_analysis(files).load())
    assert len(compared) == 5
    open_analysis([*files, write(tmp_path / "c", name)])  # other files
    assert len(compared) == 5 + 10
    monkeypatch.setitem(READER_VERSIONS, "grib", 99)
    open_analysis(files)
    assert len(compared) == 5 + 10 + 5
    files[1].unlink()
    write(files[1], name, warmer=1)
    for _ in range(2):
        with pytest.raises(InputError, match="both hold 2t for the same time and member"):
            open_analysis(files)
    assert len(compared) == 5 + 10 + 5 + 2


def test_an_archive_without_repeated_fields_leaves_nothing(compared, tmp_path):
    open_ensemble(write(tmp_path / "a", "grib"))
    assert not (tmp_path / "cache/equal").exists()
