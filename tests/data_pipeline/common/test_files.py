import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys

import pytest
from conftest import ROOT

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_path, atomic_write, expand_paths, lock_folder, remove_abandoned_files


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


def test_only_a_full_disk_is_reported_with_the_file_name(tmp_path):
    with pytest.raises(InputError, match=r"no space left .*result\.json"), atomic_path(tmp_path / "result.json"):
        raise OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="hardware"), atomic_path(tmp_path / "file"):
        raise OSError(errno.EIO, "hardware")
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "copy"):
        (tmp_path / "original").read_bytes()


@pytest.mark.parametrize("place", ["file/in/the/way", "/proc/result"])
def test_a_path_that_cannot_be_written_is_reported(tmp_path, place):
    (tmp_path / "file").write_text("")
    path = tmp_path / place
    with pytest.raises(InputError, match=rf"cannot write {path} .*choose a path"), atomic_write(path):
        pass


def test_only_partial_files_of_ended_processes_are_removed(tmp_path):
    files = unfinished_files(tmp_path)
    with atomic_path(tmp_path / "table") as mine:
        mine.write_text("whole")
        remove_abandoned_files(tmp_path)
    assert left(files) == {"running", "elsewhere"}
    assert (tmp_path / "table").read_text() == "whole"


WRITERS = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from data_pipeline.common.files import atomic_write
path, *texts = sys.argv[1:]
half = threading.Barrier(len(texts), lambda: print("half", flush=True) or sys.stdin.readline(), timeout=60)
def write(text):
    with atomic_write(path, "w") as file:
        file.write(text[:5])
        file.flush()
        half.wait()
        file.write(text[5:])
with ThreadPoolExecutor(len(texts)) as pool:
    list(pool.map(write, texts))
"""


def test_threads_of_several_processes_that_write_to_one_path_leave_one_of_the_texts(tmp_path):
    texts, path, processes = [letter * 10 for letter in "abcd"], tmp_path / "table", 2
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITERS, path, *texts[process::processes]],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for process in range(processes)
    ]  # fmt: skip
    assert [process.stdout.readline() for process in started] == ["half\n"] * processes  # of its text, in each
    for process in started:
        process.communicate("go on\n")
    assert [process.returncode for process in started] == [0] * processes
    assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_the_lock_is_one_of_a_file_open_for_writing(tmp_path):
    """NFS passes no other lock to the server: that of a folder keeps only processes of one machine out."""
    with lock_folder(tmp_path) as descriptor:
        assert stat.S_ISREG(os.fstat(descriptor).st_mode)
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        # Of this file, so that any program can find out who holds it.
        assert os.path.samestat(os.fstat(descriptor), (tmp_path / ".lock").stat())


def unfinished_files(folder):
    """Make unfinished files of an ended process, a running one, a process of another machine, and other files."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    host, files = socket.gethostname(), {}
    for name, place, process in (("ended", host, ended.pid), ("running", host, 1), ("elsewhere", "elsewhere", 1)):
        files[name] = folder / f".{name}.{place}.{process}-0.partial"
    for path in (*files.values(), folder / "a.nc", folder / ".hidden"):
        path.touch()
    return files


def left(files):
    """Return the names of the unfinished files that exist; all other files must exist."""
    folder = files["ended"].parent
    assert (folder / "a.nc").exists()
    assert (folder / ".hidden").exists()
    return {name for name, path in files.items() if path.exists()}


def test_who_holds_the_lock_removes_all_unfinished_files(tmp_path):
    (tmp_path / "inner").mkdir()
    files, inner = unfinished_files(tmp_path), unfinished_files(tmp_path / "inner")
    with lock_folder(tmp_path):
        assert (left(files), left(inner)) == (set(), set(inner))
        sentence = f"another run is writing to {tmp_path}; wait until it ends"
        with pytest.raises(InputError, match=sentence), lock_folder(tmp_path, tmp_path / "inner"):
            pass
        assert left(inner) == set(inner), "without the lock"
    with lock_folder(tmp_path, tmp_path / "inner"):
        assert left(inner) == set()


def test_without_locks_a_run_goes_on_and_says_so_and_spares_files_of_others(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    files = unfinished_files(tmp_path)
    for _ in range(2):
        with lock_folder(tmp_path):
            assert left(files) == {"running", "elsewhere"}
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{tmp_path} cannot be locked ({os.strerror(errno.ENOLCK)}): do not start a second run")


@pytest.mark.parametrize("has_lock_file", [False, True])
def test_a_folder_that_cannot_be_written_is_locked_for_reading(small_disk, has_lock_file):
    if has_lock_file:
        with lock_folder(small_disk):
            pass
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with lock_folder(small_disk), pytest.raises(InputError, match="another run is writing"), lock_folder(small_disk):
        pass
    assert (small_disk / ".lock").exists() == has_lock_file


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
