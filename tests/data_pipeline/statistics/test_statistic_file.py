"""Files of statistics: contents, attributes, and damaged or unsuitable files that are refused."""

import hashlib
import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import netCDF4
import numpy as np
import pytest

from data_pipeline.common.errors import DiskFullError, InputError
from data_pipeline.dates import Dates
from data_pipeline.statistics.efi import EfiClimate
from data_pipeline.statistics.statistic_file import is_written, load_statistic
from data_pipeline.statistics.training_forecasts import latitude_bands


@pytest.fixture(scope="module")
def climate(written, tmp_path_factory):
    return written(tmp_path_factory.mktemp("climate") / "efi.nc", EfiClimate())


def test_coordinates_and_parts_of_the_file(training, climate):
    dataset = load_statistic(climate, "efi")
    assert dataset.latitude.values.tolist() == list(training.grid.latitudes)
    assert dataset.latitude.attrs["units"] == "degrees_north"
    part = load_statistic(climate, "efi", day=4, lead_time=24)
    assert part.climate.dims == ("variable", "quantile", "latitude", "longitude")
    assert np.array_equal(part.climate, dataset.climate.sel(day=4, lead_time=24))


def test_files_are_equal_on_repetition_and_of_a_statistic_sent_to_another_process(written, training, climate, tmp_path):
    assert climate.read_bytes() == written(tmp_path / "again.nc", EfiClimate()).read_bytes()
    sent = pickle.loads(pickle.dumps((EfiClimate(), training)))
    assert climate.read_bytes() == written(tmp_path / "there.nc", *sent).read_bytes()


def test_made_from_holds_data_years_task_and_options(training, toy, climate):
    dataset = load_statistic(climate, "efi")
    made = json.loads(dataset.attrs["made_from"])
    assert made["data"] == toy.archive.fingerprint
    assert made["dates"] == [["2010-01-01", "2013-12-31"]]
    assert made["task"] == training.task.to_json()
    assert made["options"] == {"window_starts": 9}  # without memory_bytes
    assert dataset.attrs["provenance"] == hashlib.sha256(dataset.attrs["made_from"].encode()).hexdigest()[:16]


def test_is_written_compares_statistic_options_years_and_data(training, climate):
    assert is_written(climate, EfiClimate(), training)
    assert is_written(climate, EfiClimate(memory_bytes=10_000), training)
    assert not is_written(climate, EfiClimate(window_starts=7), training)
    assert not is_written(climate, EfiClimate(), replace(training, dates=Dates.of_years(range(2010, 2013))))
    renamed = replace(training.source, variable_names={"a": "b"})
    assert not is_written(climate, EfiClimate(), replace(training, source=renamed))
    assert not is_written(climate.with_name("none.nc"), EfiClimate(), training)


def test_what_is_not_there_is_named_and_another_format_is_refused(climate, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"efi\.nc has no day=5; choose one of .*4, 8, 11"):
        load_statistic(climate, "efi", day=5)
    with pytest.raises(InputError, match=r"efi\.nc holds the statistic efi, not local"):
        load_statistic(climate, "local")
    with pytest.raises(InputError, match=r"the file .*local\.nc does not exist; make it with deepweather prepare"):
        load_statistic(tmp_path / "local.nc", "local")
    monkeypatch.setattr("data_pipeline.statistics.statistic_file._VERSION", 3)
    with pytest.raises(InputError, match=r"efi\.nc has format 2, this version reads 3; run prepare again"):
        load_statistic(climate, "efi")


def test_a_damaged_value_is_found(climate, tmp_path):
    content = bytearray(climate.read_bytes())
    # The position of one chunk in the file.
    with netCDF4.Dataset(climate) as file:
        needle = file["climate"][0, 0, 0, 5, 0].data.tobytes()
    content[content.index(needle) + 3] ^= 1
    (tmp_path / "efi.nc").write_bytes(content)
    with pytest.raises(InputError, match=r"efi\.nc is damaged: its checksums do not match; name a file"):
        load_statistic(tmp_path / "efi.nc", "efi")


def test_an_incomplete_file_and_one_with_edited_attributes_are_refused(climate, tmp_path):
    path, content = tmp_path / "efi.nc", climate.read_bytes()
    for part in (content[:-100], b"", content[100:]):
        path.write_bytes(part)
        with pytest.raises(InputError, match=r"efi\.nc is not a complete NetCDF file; name a file that"):
            load_statistic(path, "efi")
    for change in ("made_from", "provenance"):
        path.write_bytes(content)
        with netCDF4.Dataset(path, "a") as file:
            file.setncattr(change, getattr(file, change).replace("2", "3") + " ")
        with pytest.raises(InputError, match=r"efi\.nc has no valid attribute made_from"):
            load_statistic(path, "efi")


def test_bands_cover_each_row_once_within_the_memory():
    for rows in (1, 5, 16, 33, 361):
        for memory in (1, 100, 3_000, 10**9):
            found = latitude_bands(rows, 10, memory, 16)
            assert [row for band in found for row in range(band.start, band.stop)] == list(range(rows))
            assert all((band.stop - band.start) * 10 <= max(memory, 160) for band in found)


@pytest.mark.parametrize("foreseen", [True, False])
def test_a_full_disk_leaves_no_file(written, small_disk, foreseen, monkeypatch):
    (small_disk / "ballast").write_bytes(bytes(1024 * 1024 - 40_000))
    if not foreseen:
        monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=10**9))
    with pytest.raises(DiskFullError, match=r"no space left on the device.*efi\.nc.*free some space"):
        written(small_disk / "efi.nc", EfiClimate())
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]
