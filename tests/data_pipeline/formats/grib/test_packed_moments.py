"""Moments of packed values equal, bit for bit, the moments of the members that `read` returns; samples read them."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from grib_parts import plain_message
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import BUDGET
from data_pipeline.formats.grib import grib_reader as source
from data_pipeline.formats.grib import packed_moments
from data_pipeline.formats.grib.grib_catalog import MessageCatalog
from data_pipeline.formats.grib.grib_reader import MessageReader
from data_pipeline.formats.grib.packed_columns import PackedColumns
from data_pipeline.formats.open import ensemble_fields
from data_pipeline.samples.pseudo_members import pseudo_members, read_moments
from data_pipeline.samples.sample_reader import read_sample
from data_pipeline.task import Variable

ROWS, COLUMNS = 9, 7
VARIABLES = [Variable("t", 850), Variable("2t"), Variable("z", 500)]


def column_of(path, messages):
    """A reader of a file of these messages, and the numbers of its fields as members of one channel."""
    path.write_bytes(b"".join(messages))
    return MessageCatalog.gather(path, None).reader, np.arange(len(messages))[:, None]


def assert_same(reader, wanted, rows=slice(None)):
    """Compare with the moments of the members that `read` returns."""
    height = len(range(ROWS)[rows])
    members = np.empty((*wanted.shape, height, COLUMNS), np.float32)
    reader.read(wanted, members, (rows, slice(None)))
    out = np.full((2, wanted.shape[1], height, COLUMNS), -1, np.float32)
    reader.read_moments(wanted, out, (rows, slice(None)))
    np.testing.assert_array_equal(out, pseudo_members(members))
    return out


AROUND = {"iDirectionIncrementInDegrees": 360 / COLUMNS, "longitudeOfLastGridPointInDegrees": 180 - 360 / COLUMNS}
"""A circle of longitudes from 180 degrees on: rows of the field are rotated rows of the file."""


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([8, 16, 24, 32]), st.sampled_from([0, 0, 2]), st.sampled_from(["rain", "dry", "holes"])
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([0, 64, 128, 192, 32, 16, None]),
    st.integers(0, 2**32 - 1),
)
def test_any_packing_of_each_member(tmp_path_factory, members, scanning, seed):
    """Members without rain have no packed values; ecCodes decodes bitmaps. None is a circle from 180 degrees on."""
    random, messages = np.random.default_rng(seed), []
    around = AROUND | {"west": 180} if scanning is None else {"scanning": scanning}
    for bits, decimal, kind in members:
        field = np.zeros((ROWS, COLUMNS)) if kind == "dry" else random.gamma(0.3, 20, (ROWS, COLUMNS))
        field[:, 3] = np.nan if kind == "holes" else field[:, 3]
        messages.append(plain_message(1, field, bits, decimalScaleFactor=decimal, **around))
    reader, wanted = column_of(tmp_path_factory.mktemp("packing") / "file", messages)
    by_numpy = [kind == "rain" or (kind == "dry" and decimal == 0) for _, decimal, kind in members]
    assert (reader.locations["bits"] >= 0).tolist() == by_numpy
    assert scanning is not None or not reader.layouts[0].straight
    assert_same(reader, wanted)
    first = int(random.integers(ROWS))
    assert_same(reader, wanted, slice(first, int(random.integers(first, ROWS)) + 1))


def test_channels_in_several_layouts(tmp_path):
    """Rows from north, rows from south, a bitmap, a missing member, and one member with another layout."""
    fields = np.random.default_rng(0).normal(280, 10, (15, ROWS, COLUMNS))
    fields[7, 0, 3] = np.nan
    scanning = [0] * 3 + [64] * 3 + [0] * 6 + [0, 64, 0]
    messages = [plain_message(1, values, 16, mode) for values, mode in zip(fields, scanning, strict=True)]
    reader, _ = column_of(tmp_path / "file", messages)
    assert len(reader.layouts) == 2
    wanted = np.arange(15).reshape(5, 3).T.copy()
    wanted[1, 3] = -1
    out = assert_same(reader, wanted)
    assert np.isnan(out).sum((0, 2, 3)).tolist() == [0, 0, 2, 2 * ROWS * COLUMNS, 0]
    assert_same(reader, wanted[:, ::-1], slice(2, 7))


@pytest.fixture(scope="module")
def file(writer, tmp_path_factory):
    return writer.forecast(tmp_path_factory.mktemp("moments") / "file", ("2t", "z@500", "t@850"))


def by_members(fields, init, lead):
    """The moments of a forecast from all of its members."""
    values = np.empty((len(fields.numbers), len(fields.variables), *fields.grid.shape), np.float32)
    fields.read(fields.cells[init, lead], values)
    return pseudo_members(values)


@pytest.mark.parametrize("variables", [VARIABLES, VARIABLES[:1]])
def test_threads_share_the_work(file, variables, monkeypatch):
    """Several threads in each of several readers, as in the staging buffer; one channel is divided by rows."""
    monkeypatch.setattr(source, "MIN_THREAD_BYTES", 1)
    monkeypatch.setattr(BUDGET, "_total", 5)
    fields = ensemble_fields(file, variables, (24, 48))
    expected = {(i, j): by_members(fields, i, j) for i in range(2) for j in range(2)}

    def check(k):
        out = np.full((2, len(variables), 5, 8), -1, np.float32)
        read_moments(fields.reader, fields.cells[k % 2, k // 2 % 2], out)
        return np.array_equal(out, expected[k % 2, k // 2 % 2])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(check, range(32)))


def test_only_the_wanted_rows_are_read_in_a_bounded_buffer(tmp_path, monkeypatch):
    """The file ends after the wanted rows of the last member, and the buffer holds a block of each member."""
    monkeypatch.setattr(packed_moments, "PACKED_BYTES_AT_ONCE", 1)
    monkeypatch.setattr(packed_moments, "BLOCK_CELLS", 8)
    fields = np.random.default_rng(0).normal(280, 10, (12, ROWS, COLUMNS))
    reader, wanted = column_of(tmp_path / "file", [plain_message(1, values, 16) for values in fields])
    expected = assert_same(reader, wanted, slice(2, 7))
    sizes, buffer = [], packed_moments.thread_buffer
    monkeypatch.setattr(packed_moments, "thread_buffer", lambda size: sizes.append(size) or buffer(size))
    (columns,) = PackedColumns.group(np.arange(1), reader.locations[wanted.T], reader.layouts, reader.conversions)
    (part,) = columns.parts(5, 1)
    end = int(reader.locations["offset"][-1] + reader.locations["data"][-1]) + 2 * 7 * COLUMNS
    out = np.empty((2, 1, 5, COLUMNS), np.float32)
    with (tmp_path / "file").open("r+b") as file:
        file.truncate(end)
        columns.reduce({0: file.fileno()}, reader.paths, part, 2, out)
        np.testing.assert_array_equal(out, expected)
        assert sizes == [12 * 8 * 2]
        file.truncate(end - 1)
        with pytest.raises(InputError, match="file has changed at byte"):
            columns.reduce({0: file.fileno()}, reader.paths, part, 2, out)
    with (tmp_path / "file").open("ab") as file, pytest.raises(OSError, match="Bad file descriptor"):
        columns.reduce({0: file.fileno()}, reader.paths, part, 2, out)  # open for writing only


# Samples read every packed value of a file once, and open the file once for each sample; counted by the system

LEADS, MEMBERS, CELLS = (24, 48), 3, 5 * 8
COUNTERS = Path("/proc/self/io")
"""Linux counts the bytes of all calls of read and pread of this process."""


class Opened:
    """The numbers of the files that readers open, and how many are open at the same time at most."""

    def __init__(self):
        self.files, self.now, self.most = [], 0, 0

    @contextmanager
    def count(self, file):
        self.files.append(file)
        self.now += 1
        self.most = max(self.most, self.now)
        yield
        self.now -= 1


@pytest.fixture
def opened(monkeypatch):
    opened, open_file = Opened(), MessageReader._opened

    @contextmanager
    def count(self, file):
        with opened.count(file), open_file(self, file) as descriptor:
            yield descriptor

    monkeypatch.setattr(MessageReader, "_opened", count)
    return opened


def batch_of(fields, moments):
    """Read the samples of one start, one for each lead time."""
    static, target = torch.zeros(1, 5, 8), torch.zeros(1, 5, 8)
    return [read_sample(fields, static, target, 1, lead, moments=moments) for lead in range(len(LEADS))]


def bytes_read():
    if not COUNTERS.exists():
        pytest.skip(f"this system has no {COUNTERS}")
    return int(COUNTERS.read_text().split()[1])


@pytest.mark.parametrize("moments", [False, True], ids=["members", "moments"])
def test_both_lead_times_of_a_file_are_read_once(file, opened, moments):
    """The packed values of the samples and nothing else: no header, no third lead time, no value twice."""
    fields = ensemble_fields(file, VARIABLES, LEADS)
    batch_of(fields, moments)
    opened.files.clear()
    counts = []
    for _ in range(5):  # other threads of the tests may read meanwhile
        before = bytes_read()
        own = bytes_read() - before
        batch_of(fields, moments)
        counts.append(bytes_read() - before - 2 * own)
    assert min(counts) == len(LEADS) * MEMBERS * len(VARIABLES) * CELLS * 2
    assert opened.files == [0] * len(LEADS) * len(counts)


def test_few_of_many_files_are_open_at_once(writer, tmp_path, opened, monkeypatch):
    """A file for each member and variable, as some archives have them: a process may not open them all."""
    names = [(name, number) for name in map(str, VARIABLES) for number in range(1, MEMBERS + 1)]
    paths = [writer.forecast(tmp_path / f"{k}", names[k][:1], leads=LEADS, numbers=(names[k][1],)) for k in range(9)]
    fields = ensemble_fields(paths, VARIABLES, LEADS)
    together = batch_of(fields, True)
    assert sorted(opened.files) == sorted([*range(9), *range(9)])
    assert opened.most == 9
    opened.files.clear()
    opened.most = 0
    monkeypatch.setattr(source, "FILES_AT_ONCE", 8)
    apart = batch_of(fields, True)
    assert sorted(opened.files) == sorted([*range(9), *range(9)])
    assert opened.most == MEMBERS
    for one, other, members in zip(together, apart, batch_of(fields, False), strict=True):
        assert torch.equal(one.ensemble, other.ensemble)
        np.testing.assert_array_equal(one.ensemble, pseudo_members(members.ensemble.numpy()))
