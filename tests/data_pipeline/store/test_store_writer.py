"""Writing a store: kills, damage, full disks, and folders that are in use."""

import errno
import hashlib
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from data_pipeline.cluster import LocalProcesses, Threads
from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.files import lock_folder
from data_pipeline.store import Store, shard, store_writer
from data_pipeline.store.store_writer import WriteJob
from data_pipeline.task import Task


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_plan_describes_the_files_that_will_be_written(archive, store, task, sample_bytes):
    plan = Store.plan(archive, task, shard_bytes=4 * sample_bytes + 100)
    assert plan == store.contents
    assert str(plan) == "9 forecasts (4 members of 2t, t@850, sst; truth t@850, 2t) in 4 files, 0.00 GB"
    assert set(plan.files) == {path.name for path in store.folder.glob("*.nc")}
    size = sum((store.folder / name).stat().st_size for name in plan.files)
    assert 0 < size - plan.bytes < len(plan.files) * store_writer.METADATA_BYTES


def test_a_folder_of_another_store_is_refused(archive, store, make, tmp_path):
    before, contents = digests(store.folder), bytearray(Path(archive.ensemble[0]).read_bytes())
    contents[-6] ^= 1  # a value of the last message
    (tmp_path / "ensemble").write_bytes(contents)
    for change, sentence in (
        ({"dates": [2016]}, "dates and samples; choose another folder"),
        ({"shard_bytes": 1, "moments": True}, "moments and shard_bytes"),
        ({"task": Task("toy", ["2t"], ["2t"], [24])}, "inputs and targets and lead times"),
        ({"archive": replace(archive, ensemble=[f"{tmp_path}/ensemble"])}, "files of the archive or versions of its"),
    ):
        with pytest.raises(InputError, match=f"{store.folder} holds a store with other {sentence}"):
            make(store.folder, **change)
    assert digests(store.folder) == before


def test_damaged_files_are_found_and_written_again(store, copy, make):
    damaged = bytearray((copy / "samples-00001.nc").read_bytes())
    damaged[-40] ^= 1
    (copy / "samples-00001.nc").write_bytes(damaged)
    with pytest.raises(InputError, match=r"samples-00001.nc has changed .*; run `deepweather prepare` again"):
        _ = Store(copy).fingerprint
    before = {path.name: path.stat().st_mtime_ns for path in copy.glob("*.nc")}
    make(copy)
    assert digests(copy) == digests(store.folder)
    assert {path.name for path in copy.glob("*.nc") if path.stat().st_mtime_ns != before[path.name]} == {
        "samples-00001.nc"
    }


def test_incomplete_files_are_refused_at_opening(copy, make):
    before = Store(copy).fingerprint
    with (copy / "samples-00000.nc").open("ab") as file:
        file.write(b"x")
    with pytest.raises(InputError, match=r"samples-00000.nc has \d+ bytes instead of \d+; run `deepweather"):
        Store(copy)
    (copy / "samples-00000.nc").unlink()
    with pytest.raises(InputError, match=r"samples-00000.nc is missing; run `deepweather prepare` again"):
        Store(copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"].popitem()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=f"the store {copy} lacks 1 of 4 files; run `deepweather prepare` again"):
        Store(copy)
    assert make(copy).fingerprint == before


def test_another_manifest_is_refused_and_a_folder_without_one_is_named(copy, make):
    for text, sentence in (
        ("{", "is not the manifest of a store; make a new store in another folder"),
        ('{"format": 2, "plan": {"moments": true}}', "has format 2, this version reads format 3; make a new store"),
        ('{"format": 0}', "has format 0, this version reads format 2; make a new store in another folder"),
    ):
        (copy / "manifest.json").write_text(text)
        with pytest.raises(InputError, match=f"manifest.json {sentence}"):
            Store(copy)
    (copy / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"manifest.json does not exist; set data.store to the folder of a store"):
        Store(copy)
    with pytest.raises(InputError, match=r"has no store but holds samples-00000.nc; choose another folder"):
        make(copy)


@pytest.mark.parametrize("cluster", [Threads(3), LocalProcesses(1)], ids=["threads", "processes"])
def test_workers_write_the_same_bytes(store, tmp_path, make, cluster, monkeypatch):
    """All shards are tasks of the workers, none is written in the main thread."""
    here, finish = [], store_writer._finish_shard

    def note(job, folder, stopped, count, name):
        here.append((name, threading.current_thread() is threading.main_thread()))
        return finish(job, folder, stopped, count, name)

    monkeypatch.setattr(store_writer, "_finish_shard", note)
    with cluster.executor() as workers:
        make(tmp_path, workers=workers)
        assert sorted(here) == ([(name, False) for name in store.contents.shards] if cluster == Threads(3) else [])
        (tmp_path / "samples-00001.nc").unlink()
        make(tmp_path, workers=workers)
    assert digests(tmp_path) == digests(store.folder)


def test_an_error_of_one_worker_stops_the_others(store, tmp_path, make, monkeypatch):
    write_samples = store_writer._write_samples

    def fail(path, job, samples, stopped, count):
        if samples.start == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if samples.start == 0:
            assert stopped.wait(60)
        return write_samples(path, job, samples, stopped, count)

    monkeypatch.setattr(store_writer, "_write_samples", fail)
    with (
        Threads(3).executor() as workers,
        pytest.raises(InterruptedRunError, match=r"no space left .*samples-00001.nc.* run the same command again"),
    ):
        make(tmp_path, workers=workers)
    assert not list(tmp_path.glob(".*.partial"))
    assert not (tmp_path / "samples-00000.nc").exists()
    monkeypatch.undo()
    make(tmp_path)
    assert digests(tmp_path) == digests(store.folder)


def test_a_worker_refuses_an_archive_that_has_changed(archive, tmp_path, task, sample_bytes):
    """A process that opened the files before they changed opens them again."""
    contents = Path(archive.ensemble[0]).read_bytes()
    (tmp_path / "ensemble").write_bytes(contents)
    changing = replace(archive, ensemble=[f"{tmp_path}/ensemble"])
    job = WriteJob.from_task(changing, task, None, False, 3 * sample_bytes)
    (tmp_path / "ensemble").write_bytes(contents[:-6] + b"\1" + contents[-5:])
    with pytest.raises(InputError, match="have changed while the store was written; run again"):
        store_writer._finish_shard_elsewhere(job.recipe, job.plan.digest, tmp_path, "samples-00000.nc")
    (tmp_path / "ensemble").write_bytes(contents[:-6] + b"\2" + contents[-5:])
    later = WriteJob.from_task(replace(changing), task, None, False, 3 * sample_bytes)
    assert later.recipe == job.recipe
    store_writer._finish_shard_elsewhere(later.recipe, later.plan.digest, tmp_path, "samples-00000.nc")


def test_two_runs_cannot_write_to_one_folder(tmp_path, make):
    with (
        lock_folder(tmp_path),
        pytest.raises(InputError, match=f"another run is writing to {tmp_path}; wait until it ends"),
    ):
        make(tmp_path)


def test_an_interrupt_can_be_resumed(store, tmp_path, make, monkeypatch):
    def stop(*job, finish=store_writer._finish_shard):
        if job[-1] != "samples-00000.nc":
            raise KeyboardInterrupt
        return finish(*job)

    monkeypatch.setattr(store_writer, "_finish_shard", stop)
    with pytest.raises(InterruptedRunError, match=f"interrupted while writing {tmp_path}; run the same command again"):
        make(tmp_path)
    monkeypatch.undo()
    assert (tmp_path / "samples-00000.nc").exists()
    make(tmp_path)
    assert digests(tmp_path) == digests(store.folder)


def test_a_full_disk_is_detected_before_writing(small_disk, make):
    folder = small_disk / "store"
    (small_disk / "ballast").write_bytes(bytes(1024 * 1024 - 60_000))
    with pytest.raises(InterruptedRunError, match=r"no space left .*samples-00000.nc.* run the same command again"):
        make(folder)
    assert {path.name for path in folder.iterdir()} == {".lock", "manifest.json", "static.nc"}


def test_errors_of_the_netcdf_library_name_the_file(tmp_path, monkeypatch, make):
    def fail(*_):
        raise RuntimeError("NetCDF: HDF error")

    monkeypatch.setattr(shard, "_write_metadata", fail)
    with pytest.raises(InputError, match=r"cannot write .*samples-00000.nc \(NetCDF: HDF error\)"):
        make(tmp_path)
    assert not list(tmp_path.glob(".*.partial"))
