"""Samples read every packed value of a file once, and open the file once for each sample; counted by the system."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.formats.grib import grib_reader as source
from data_pipeline.formats.grib.grib_reader import MessageReader
from data_pipeline.formats.open import ensemble_fields
from data_pipeline.samples.pseudo_members import pseudo_members
from data_pipeline.samples.sample_reader import read_sample
from data_pipeline.task import Variable

VARIABLES, LEADS, MEMBERS, CELLS = ("2t", "z@500", "t@850"), (24, 48), 3, 5 * 8
COUNTERS = Path("/proc/self/io")
"""Linux counts the bytes of all calls of read and pread of this process."""


@pytest.fixture(scope="module")
def file(writer, tmp_path_factory):
    return writer.forecast(tmp_path_factory.mktemp("reads") / "file", VARIABLES, leads=(0, *LEADS))


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
    fields = ensemble_fields(file, [Variable.parse(name) for name in VARIABLES], LEADS)
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
    names = [(name, number) for name in VARIABLES for number in range(1, MEMBERS + 1)]
    paths = [writer.forecast(tmp_path / f"{k}", names[k][:1], leads=LEADS, numbers=(names[k][1],)) for k in range(9)]
    fields = ensemble_fields(paths, [Variable.parse(name) for name in VARIABLES], LEADS)
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
