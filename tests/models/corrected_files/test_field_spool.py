"""Corrected forecasts of a file in any order of messages: the same messages, in the memory of one forecast."""

import tracemalloc
from itertools import product

import numpy as np
import pytest
import torch
from correction_runs import correct, write_members
from grib_parts import GRID

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrected_files import field_spool
from models.corrected_files.field_spool import FieldSpool
from models.corrector import Corrector

STARTS, MEMBERS = range(20200101, 20200125), range(1, 6)
LARGE = Grid.regular(45, 90)


@pytest.fixture
def files(tmp_path):
    """The same messages: forecast after forecast, and member after member."""
    random = np.random.default_rng(0)
    fields = {("2t", s, 24, m): 280 + 8 * random.standard_normal(LARGE.shape) for s, m in product(STARTS, MEMBERS)}
    write_members(tmp_path / "forecasts", fields, LARGE)
    write_members(tmp_path / "members", dict(sorted(fields.items(), key=lambda item: item[0][::-1])), LARGE)
    return tmp_path


@pytest.fixture
def corrector():
    task = Task("toy", ["2t"], ["2t"], [24], [])
    return Corrector(task, LARGE, {"_target_": "models.statistical.raw.Raw"}, torch.zeros(3, *LARGE.shape)).eval()


def peak(corrector, source, target):
    """Return the largest memory of the correction in bytes."""
    tracemalloc.start()
    try:
        assert correct(corrector, source, target).messages == len(STARTS) * len(MEMBERS)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_member_major_files_need_no_more_memory_than_forecast_major_files(files, corrector):
    """All 24 corrected forecasts together would need several times as much."""
    correct(corrector, files / "forecasts", files / "first")  # imports and caches
    usual = peak(corrector, files / "forecasts", files / "one")
    scattered = peak(corrector, files / "members", files / "two")
    forecast = 8 * len(MEMBERS) * LARGE.shape[0] * LARGE.shape[1]
    assert scattered < usual + 2 * forecast
    assert 24 * forecast > usual
    # The same messages in another order.
    size = (files / "one").stat().st_size // (len(STARTS) * len(MEMBERS))
    one, two = ((files / name).read_bytes() for name in ("one", "two"))
    parts = [sorted(data[k : k + size] for k in range(0, len(data), size)) for data in (one, two)]
    assert parts[0] == parts[1]
    assert one != two
    outputs = ("first", "one", "two")
    assert {path.name for path in files.iterdir()} == {
        "forecasts", "members", *outputs, *(f"{name}.json" for name in outputs)
    }  # fmt: skip


def test_fields_come_back_from_the_file_and_its_space_is_used_again(tmp_path):
    random = np.random.default_rng(0)
    fields = {key: random.random((3, 4)) for key in range(12)}
    with FieldSpool(tmp_path / "out") as spool:
        for first in (0, 3, 6):
            spool.add({key: fields[key] for key in range(first, first + 3)})
            np.testing.assert_array_equal(spool.take(first), fields[first])
        np.testing.assert_array_equal(spool.take(2), fields[2])
        assert 2 not in spool
        np.testing.assert_array_equal(spool.take(6), fields[6])  # again: still in memory
        spool.add({key: fields[key] for key in range(9, 12)})
        assert [key for key in fields if key in spool] == [1, 4, 5, 7, 8, 9, 10, 11]
        for key in (8, 1, 5, 7, 4, 11):
            np.testing.assert_array_equal(spool.take(key), fields[key])
        assert spool._file.seek(0, 2) == 5 * 96
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_order_of_forecasts_makes_no_file(files, corrector, monkeypatch):
    monkeypatch.setattr(field_spool.tempfile, "TemporaryFile", None)
    correct(corrector, files / "forecasts", files / "out")


def test_a_full_disk_is_reported_with_the_output(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(field_spool.tempfile, "TemporaryFile", full)
    with FieldSpool(tmp_path / "out") as spool:
        spool.add({0: np.zeros(GRID.shape)})
        with pytest.raises(InputError, match=r"no space left on the device while writing .*out;"):
            spool.add({1: np.zeros(GRID.shape)})
