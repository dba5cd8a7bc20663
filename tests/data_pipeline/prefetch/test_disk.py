"""The disk tier: what it takes over, what it refuses, what it does about damage."""

import errno
import os
from pathlib import Path

import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.codec import OVERHEAD
from data_pipeline.prefetch.disk import DiskTier


@pytest.fixture
def data(numbered):
    return numbered(10)


@pytest.fixture
def tier(tmp_path, data):
    made = []

    def make(fingerprint="a", wanted=range(5)):
        for old in made:
            old.close()
        made.append(DiskTier(tmp_path / "cache", fingerprint, wanted, data.nbytes))
        return made[-1]

    yield make
    for old in made:
        old.close()


def held(tier):
    return [k for k in range(10) if k in tier]


def test_what_was_put_is_there_after_a_restart(tier, data, same):
    first = tier()
    for k in (0, 3, 7):
        first.put(k, data[k])
    again = tier()
    assert held(again) == [0, 3]  # 7 was not wanted
    assert same(again.get(3, data.static), data[3])
    assert again.get(4, data.static) is None


def test_what_is_not_wanted_any_more_is_removed(tier, data, tmp_path):
    first = tier()
    for k in range(5):
        first.put(k, data[k])
    (tmp_path / "cache/notes.txt").write_text("not ours")
    assert held(tier(wanted=[1, 4, 8])) == [1, 4]
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [
        "00000001.sample", "00000004.sample", "key.json", "lock", "notes.txt",
    ]  # fmt: skip


@pytest.mark.parametrize("damage", ["other data", "no key", "half a key"])
def test_samples_of_other_data_are_not_used(tier, data, tmp_path, damage):
    first = tier()
    first.put(2, data[2])
    key = tmp_path / "cache/key.json"
    if damage == "no key":
        key.unlink()
    elif damage == "half a key":
        key.write_text(key.read_text()[:9])
    again = tier("b" if damage == "other data" else "a")
    assert held(again) == []
    assert not list((tmp_path / "cache").glob("*.sample"))
    again.put(2, data[2])
    assert held(tier("b" if damage == "other data" else "a")) == [2]


@pytest.mark.parametrize("damage", ["changed", "cut", "gone", "empty"])
def test_a_damaged_sample_is_not_there_and_can_be_put_again(tier, data, tmp_path, same, damage):
    tier().put(2, data[2])
    path = tmp_path / "cache/00000002.sample"
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        content[1200] ^= 1
        path.write_bytes({"changed": content, "cut": content[:-8], "empty": b""}[damage])
    again = tier()
    assert again.get(2, data.static) is None
    assert 2 not in again
    again.put(2, data[2])
    assert same(again.get(2, data.static), data[2])


def test_what_a_killed_run_left_half_written_is_removed(tier, tmp_path):
    tier()
    (tmp_path / "cache/00000002.123.partial").write_bytes(b"half")
    tier()
    assert not list((tmp_path / "cache").glob("*.partial"))


def test_a_file_is_no_larger_than_its_share_of_the_budget(tier, data, tmp_path):
    tier().put(2, data[2])
    assert (tmp_path / "cache/00000002.sample").stat().st_size <= data.nbytes + OVERHEAD


def test_a_full_disk_is_left_alone_and_the_run_goes_on(tier, data, monkeypatch, capsys):
    first = tier()
    first.put(0, data[0])

    def full(self, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        first.put(1, data[1])
    first.put(2, data[2])
    assert held(first) == [0]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("takes no more samples (No space left on device); going on without")
    assert held(tier()) == [0]


def test_a_folder_belongs_to_one_run(tier, tmp_path):
    first = tier()
    with pytest.raises(
        InputError, match=r"cache is in use by another run; choose another folder or wait for it to end"
    ):
        DiskTier(tmp_path / "cache", "a", [1], 100)
    first.close()
    DiskTier(tmp_path / "cache", "a", [1], 100).close()


def test_a_place_that_is_no_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"data\.cache\.folder: cannot use .*file/x \(Not a directory\); choose"):
        DiskTier(tmp_path / "file/x", "a", [1], 100)
