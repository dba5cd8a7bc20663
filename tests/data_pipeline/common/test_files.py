import errno
import os
import socket
import subprocess

import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import (
    atomic_path,
    atomic_write,
    expand_paths,
    lock_folder,
    remove_abandoned_files,
    remove_partial_files,
)


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    with atomic_write(tmp_path / "deep" / "file", "w") as file:
        file.write("whole")
        assert not (tmp_path / "deep" / "file").exists()
    assert (tmp_path / "deep" / "file").read_text() == "whole"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch, durable):
    done, synchronise = [], os.fsync

    def recorded(descriptor):
        synchronise(descriptor)
        done.append((os.fstat(descriptor).st_size, (tmp_path / "file").exists()))

    monkeypatch.setattr(os, "fsync", recorded)
    with atomic_write(tmp_path / "file", "w", durable=durable) as file:
        file.write("whole")
    assert (tmp_path / "file").read_text() == "whole"
    assert done == [(5, False)] * durable


def test_a_failed_write_keeps_the_old_file_and_no_partial_file(tmp_path):
    def fail_half_way():
        with atomic_write(tmp_path / "file", "w") as file:
            file.write("half")
            raise ZeroDivisionError

    (tmp_path / "file").write_text("old")
    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert (tmp_path / "file").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_is_reported_with_the_file_name(tmp_path):
    with pytest.raises(InputError, match=r"no space left .*result\.json"), atomic_path(tmp_path / "result.json"):
        raise OSError(errno.ENOSPC, "full")


@pytest.mark.parametrize("place", ["file/in/the/way", "/proc/result"])
def test_a_path_that_cannot_be_written_is_reported(tmp_path, place):
    (tmp_path / "file").write_text("")
    path = tmp_path / place
    with pytest.raises(InputError, match=rf"cannot write {path} .*choose a path"), atomic_write(path):
        pass


def test_a_missing_input_is_not_reported_as_a_write_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "copy"):
        (tmp_path / "original").read_bytes()


def test_other_disk_errors_are_not_translated(tmp_path):
    with pytest.raises(OSError, match="hardware"), atomic_path(tmp_path / "file"):
        raise OSError(errno.EIO, "hardware")


def test_only_partial_files_of_ended_processes_are_removed(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    name = f".table.{socket.gethostname()}"
    left, foreign = tmp_path / f"{name}.{gone.pid}.partial", tmp_path / f".table.elsewhere.{gone.pid}.partial"
    for path in (left, foreign, tmp_path / "table"):
        path.write_text("half")
    with atomic_path(tmp_path / "table") as mine:
        mine.write_text("whole")
        remove_abandoned_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [foreign.name, "table"]
    assert (tmp_path / "table").read_text() == "whole"


def test_a_folder_is_locked_by_one_run(tmp_path):
    sentence = f"another run is writing to {tmp_path}; wait until it ends"
    with lock_folder(tmp_path), pytest.raises(InputError, match=sentence), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass


def test_partial_files_of_a_killed_run_are_removed(tmp_path):
    for name in (".a.nc.123.partial", "a.nc", ".hidden"):
        (tmp_path / name).write_text("")
    remove_partial_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"a.nc", ".hidden"}


def test_paths_and_patterns_become_files(tmp_path, monkeypatch):
    for name in ("b", "a", "c.idx", "odd[1]"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder").mkdir()
    assert expand_paths(tmp_path / "*") == [tmp_path / "a", tmp_path / "b", tmp_path / "odd[1]"]
    assert expand_paths([tmp_path / "b", str(tmp_path / "?")]) == [tmp_path / "b", tmp_path / "a"]
    assert expand_paths(tmp_path / "c.idx") == [tmp_path / "c.idx"]
    assert expand_paths(tmp_path / "odd[1]") == [tmp_path / "odd[1]"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_paths("~/a") == [tmp_path / "a"]
    for wrong, sentence in {
        "none*": r"no file matches .*none\*",
        "none": "there is no file .*none",
        "folder": r"folder is a folder but no Zarr store; name its files, for example with .*folder/\*",
        "fold*": r"no file matches .*fold\*",
    }.items():
        with pytest.raises(InputError, match=sentence):
            expand_paths(tmp_path / wrong)
    with pytest.raises(InputError, match="no files were given"):
        expand_paths([])
