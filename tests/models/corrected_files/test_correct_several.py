"""Several correctors and files in one run of `correct`, in any order of messages and the memory of one forecast."""

import tracemalloc
from itertools import product

import numpy as np
import pytest
import torch
from correction_runs import correct, correct_with, random_corrector, write_members
from grib_parts import GRID

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib import grib_reader as reader
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from data_pipeline.writing import repack
from models.corrected_files import field_spool
from models.corrected_files.field_spool import FieldSpool
from models.corrector import Corrector
from models.engines.torch_engine import TorchEngine

MEMBERS = 4


def write(path, name):
    """Write forecasts of one variable for two starts and two lead times."""
    random = np.random.default_rng(len(name))
    keys = product([name], (20200101, 20200102), (24, 48), range(1, MEMBERS + 1))
    return write_members(path, {key: 280 + 8 * random.standard_normal(GRID.shape) for key in keys})


def make_corrector(target, leads=(24, 48), inputs=()):
    """Return EMOS of one target with other coefficients in every cell; it reads `inputs`, or the target alone."""
    task = Task(target, list(inputs) or [target], [target], list(leads))
    return random_corrector(task, seed=len(target))


def test_several_files_equal_the_joined_file(tmp_path):
    files = [write(tmp_path / name, name) for name in ("2t", "msl")]
    (tmp_path / "joined").write_bytes(b"".join(path.read_bytes() for path in files))
    correct(make_corrector("msl"), files, tmp_path / "one")
    correct(make_corrector("msl"), tmp_path / "joined", tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_correctors_of_the_same_target_need_other_lead_times(tmp_path):
    path = write(tmp_path / "2t", "2t")
    early, late = (make_corrector("2t", [lead]) for lead in (24, 48))
    assert correct({"early": early, "late": late}, path, tmp_path / "both").messages == 2 * 2 * MEMBERS
    with pytest.raises(InputError, match=r"early and all both correct 2t at .24 h; name one of them"):
        correct({"early": early, "all": make_corrector("2t")}, path, tmp_path / "never")


@pytest.mark.parametrize("inputs", [["2t"], ["2t", "msl"]])
def test_each_message_is_decoded_once_for_all_correctors(tmp_path, monkeypatch, inputs):
    """Counted where messages are decoded; the decoded messages are all that any corrector reads."""
    (tmp_path / "in").write_bytes(b"".join(write(tmp_path / name, name).read_bytes() for name in ("2t", "msl")))
    both = {name: make_corrector(name, inputs=dict.fromkeys([*inputs, name])) for name in ("2t", "msl")}
    for name in both:
        (tmp_path / "in2").write_bytes((tmp_path / "in").read_bytes())
        correct({name: both[name]}, tmp_path / "in2", tmp_path / f"{name}.out")
    decoded = []
    read = reader.read_values

    def counted(target, descriptor, path, location, cutout):
        decoded.append(location.offset)
        read(target, descriptor, path, location, cutout)

    monkeypatch.setattr(reader, "read_values", counted)
    monkeypatch.setattr(repack, "decode", lambda *_: pytest.fail("decoded again for its missing values"))
    correct(both, tmp_path / "in", tmp_path / "both")
    assert len(decoded) == len(set(decoded)) == 2 * 2 * 2 * MEMBERS
    halves = [(tmp_path / name).read_bytes() for name in ("both", "2t.out", "msl.out")]
    half = len(halves[0]) // 2
    assert halves[0] == halves[1][:half] + halves[2][half:]


def test_messages_that_occur_twice_are_corrected_twice(tmp_path):
    """Each forecast is asked for again when its fields were taken; those of the other corrector wait in the spool."""
    messages = [
        content[at : at + length]
        for content in (write(tmp_path / name, name).read_bytes() for name in ("2t", "msl"))
        for length in [len(content) // (2 * 2 * MEMBERS)]
        for at in range(0, len(content), length)
    ]
    both = {name: make_corrector(name) for name in ("2t", "msl")}
    (tmp_path / "once").write_bytes(b"".join(messages))
    (tmp_path / "twice").write_bytes(b"".join(messages[:16] * 2 + messages[16:] * 2))
    correct(both, tmp_path / "once", tmp_path / "one")
    correct(both, tmp_path / "twice", tmp_path / "two", on_problem="raw")
    one, half = (tmp_path / "one").read_bytes(), sum(map(len, messages[:16]))
    assert (tmp_path / "two").read_bytes() == one[:half] * 2 + one[half:] * 2


def test_an_explanation_that_cannot_be_written_needs_attention(tmp_path):
    """The output is whole by then, so the run does not end as if there were none."""

    def finish(_):
        raise InputError("no space left for the page")

    path = write(tmp_path / "2t", "2t")
    summary = correct_with([TorchEngine(make_corrector("2t"))], [path], tmp_path / "out", finish)
    assert summary.problems
    assert summary.notes[-1].endswith("its explanation could not be written: no space left for the page")
    correct(make_corrector("2t"), path, tmp_path / "plain")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "plain").read_bytes()


STARTS, NUMBERS = range(20200101, 20200125), range(1, 6)
LARGE = Grid.regular(45, 90)


@pytest.fixture
def files(tmp_path):
    """The same messages: forecast after forecast, and member after member."""
    random = np.random.default_rng(0)
    fields = {("2t", s, 24, m): 280 + 8 * random.standard_normal(LARGE.shape) for s, m in product(STARTS, NUMBERS)}
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
        assert correct(corrector, source, target).messages == len(STARTS) * len(NUMBERS)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_member_major_files_need_no_more_memory_than_forecast_major_files(files, corrector):
    """All 24 corrected forecasts together would need several times as much."""
    correct(corrector, files / "forecasts", files / "first")  # imports and caches
    usual = peak(corrector, files / "forecasts", files / "one")
    scattered = peak(corrector, files / "members", files / "two")
    forecast = 8 * len(NUMBERS) * LARGE.shape[0] * LARGE.shape[1]
    assert scattered < usual + 2 * forecast
    assert 24 * forecast > usual
    # The same messages in another order.
    size = (files / "one").stat().st_size // (len(STARTS) * len(NUMBERS))
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
