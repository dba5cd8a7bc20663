"""The bytes of a sample, and the disk tier: reused files, refused folders, damage, full disks."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.disk import SAMPLE_OVERHEAD, DiskTier, decode_sample, encode_sample
from data_pipeline.sample import Sample


def encoded(sample):
    return bytearray(b"".join(encode_sample(sample)))


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 7), st.sampled_from(["f", "d"]))
def test_encoding_and_decoding_keeps_every_bit(same, M, C, H, W, kind):
    dtype = {"f": torch.float32, "d": torch.float64}[kind]
    static = torch.rand(2, H, W)
    sample = Sample(
        torch.rand(M, C, H, W, dtype=dtype), torch.rand(C, H, W) > 0.5, static, torch.full((1, H, W), torch.nan),
        torch.tensor(-5), torch.tensor(48),
    )  # fmt: skip
    data = encoded(sample)
    found = decode_sample(data, static)
    assert found.static is static
    assert same(found._replace(target=static), sample._replace(target=static))
    assert found.target.isnan().all()
    assert len(data) <= sum(tensor.nbytes for tensor in sample) - static.nbytes + SAMPLE_OVERHEAD


def test_changed_and_missing_bytes_are_detected(numbered):
    data = encoded(numbered(1)[0])
    for where in (0, 9, 13, 60, 1500):
        changed = data.copy()
        changed[where] ^= 1
        assert decode_sample(changed, torch.zeros(1)) is None
    assert all(decode_sample(data[:length], torch.zeros(1)) is None for length in (0, 5, 1023, 1024, 1500))


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


def test_samples_are_found_after_a_restart(tier, data, same):
    first = tier()
    for k in (0, 3, 7):
        first.put(k, data[k])
    again = tier()
    assert held(again) == [0, 3]  # 7 is not wanted
    assert same(again.get(3, data.static), data[3])
    assert again.get(4, data.static) is None


def test_samples_no_longer_wanted_and_unfinished_files_of_a_killed_run_are_removed(tier, data, tmp_path):
    first = tier()
    for k in range(5):
        first.put(k, data[k])
    (tmp_path / "cache/notes.txt").write_text("a user's file")
    (tmp_path / "cache/00000002.123.partial").write_bytes(b"half")
    assert held(tier(wanted=[1, 4, 8])) == [1, 4]
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [
        "00000001.sample", "00000004.sample", "key.json", "lock", "notes.txt",
    ]  # fmt: skip


@pytest.mark.parametrize("fingerprint", ["b", "a"], ids=["other data", "half a key"])
def test_samples_of_other_data_are_not_used(tier, data, tmp_path, fingerprint):
    first = tier()
    first.put(2, data[2])
    key = tmp_path / "cache/key.json"
    if fingerprint == "a":
        key.write_text(key.read_text()[:9])
    again = tier(fingerprint)
    assert held(again) == []
    assert not list((tmp_path / "cache").glob("*.sample"))
    again.put(2, data[2])
    assert held(tier(fingerprint)) == [2]


@pytest.mark.parametrize(
    "damage", [lambda content: content[:1200] + b"?" + content[1201:], lambda content: content[:-8], lambda _: b""]
)
def test_a_damaged_sample_is_absent_and_can_be_put_again(tier, data, tmp_path, same, damage):
    tier().put(2, data[2])
    path = tmp_path / "cache/00000002.sample"
    path.write_bytes(damage(path.read_bytes()))
    again = tier()
    assert again.get(2, data.static) is None
    assert 2 not in again
    again.put(2, data[2])
    assert same(again.get(2, data.static), data[2])


def test_the_run_continues_on_a_full_disk_without_writing_more(tier, data, monkeypatch, capsys):
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
    assert line.endswith("(No space left on device); the run continues without writing more samples there")
    assert held(tier()) == [0]


def test_a_folder_in_use_one_without_locks_and_a_path_that_is_none_are_refused(tier, tmp_path, monkeypatch):
    """Without locks, two runs would take samples of each other: their checksums are right."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    def refused(place, sentence):
        with pytest.raises(InputError, match=sentence):
            DiskTier(tmp_path / place, "a", [1], 100)

    first = tier()
    refused("cache", r"another run is using .*cache; choose another folder or wait until it ends")
    first.close()
    DiskTier(tmp_path / "cache", "a", [1], 100).close()
    (tmp_path / "file").touch()
    refused("file/x", r"data\.cache\.disk_folder: cannot use .*file/x \(Not a directory\); choose")
    monkeypatch.setattr(fcntl, "flock", refuse)
    refused("cache", r"disk_folder: cannot lock .*cache \(No locks available\); choose .* local")
