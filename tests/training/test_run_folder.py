"""A run folder belongs to one run: options that make another run, and options that do not."""

import subprocess
import threading
from contextlib import nullcontext

import pytest
from conftest import ROOT
from forks import Program

from data_pipeline.common.errors import DiskFullError, InputError, InterruptedRunError
from training.run.run_folder import FolderLock, claim, resumable

OPTIONS = {
    "data": {"name": "twin", "cache": {"memory": 4, "folder": None}},
    "trainer": {"epochs": 3, "checkpoint_minutes": 10},
    "run_dir": "runs/a",
}


def change_option(group, option, value):
    return OPTIONS | {group: OPTIONS[group] | {option: value}}


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS | {"run_dir": "moved"}, change_option("data", "cache", {"memory": 9, "folder": "/other/disk"}),
        change_option("trainer", "checkpoint_minutes", 1),
    ],
    ids=["moved", "another disk", "other minutes"],
)  # fmt: skip
def test_options_without_effect_on_the_result_resume(tmp_path, options):
    assert claim(tmp_path, OPTIONS, "data 1") == claim(tmp_path, options, "data 1")


@pytest.mark.parametrize(
    ("options", "fingerprint", "named"),
    [
        (change_option("trainer", "epochs", 4), "data 1", "trainer"),
        (change_option("data", "name", "grib"), "data 1", "data"),
        (change_option("trainer", "epochs", 4) | {"data": {"name": "grib"}}, "data 1", "data and trainer"),
        (OPTIONS, "data 2", "fingerprint"),
    ],
)
def test_another_run_is_refused_with_the_differing_groups(tmp_path, options, fingerprint, named):
    claim(tmp_path, OPTIONS, "data 1")
    refused = pytest.raises(InputError, match=f"holds a run with other .*{named}.*; choose another run_dir")
    with refused, resumable(tmp_path):
        claim(tmp_path, options, fingerprint)
    assert (tmp_path / "config.yaml").exists(), "the folder of the other run"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("- a list\n", "was not written by deepweather train; choose another run_dir"),
        ("format: 2\n", r"config\.yaml has format 2, this version resumes format 3; finish .*, or choose another"),
    ],
    ids=["something else", "another format"],
)
def test_a_folder_of_something_else_is_refused_and_not_changed(tmp_path, content, sentence):
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(InputError, match=sentence):
        claim(tmp_path, OPTIONS, "data 1")
    assert (tmp_path / "config.yaml").read_text() == content


def fail(folder, error, made=(), lock=None):
    """Claim a folder, create subfolders and fail."""
    with resumable(folder), lock or nullcontext():
        claim(folder, OPTIONS, "data 1")
        if lock:
            lock.take()
        for name in made:
            (folder / name).mkdir()
        raise error


@pytest.mark.parametrize(
    ("earlier", "made", "locks", "left"),
    [
        ([], [], False, set()), ([], ["tensorboard"], False, set()), (["tensorboard"], [], False, {"tensorboard"}),
        ([], ["tensorboard", "checkpoints"], False, {"config.yaml", "tensorboard", "checkpoints"}),
        ([], [], True, {".lock"}),
    ],
    ids=["nothing", "a curve", "an earlier file", "checkpoints", "a lock"],
)  # fmt: skip
def test_a_refused_run_leaves_its_checkpoints_and_what_was_there(tmp_path, earlier, made, locks, left):
    for name in earlier:
        (tmp_path / name).mkdir()
    with pytest.raises(InputError, match="wrong option"):
        fail(tmp_path, InputError("wrong option"), made, FolderLock(tmp_path) if locks else None)
    assert {path.name for path in tmp_path.iterdir()} == left


@pytest.mark.parametrize("error", [DiskFullError("no space"), InterruptedRunError("stopped")])
def test_a_resumable_run_keeps_its_folder(tmp_path, error):
    with pytest.raises(InterruptedRunError):
        fail(tmp_path, error)
    assert (tmp_path / "config.yaml").exists()


HOLDER = """
import sys, time
from pathlib import Path
from training.run.run_folder import FolderLock
with FolderLock(Path(sys.argv[1])) as lock:
    lock.take()
    print("locked", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that trains in the folder."""
    claim(tmp_path, OPTIONS, "data 1")
    (program := tmp_path / "holder.py").write_text(HOLDER)
    process = Program([program, tmp_path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()


def test_a_folder_in_which_another_process_trains_is_refused(tmp_path, holder, monkeypatch):
    unfinished = tmp_path / ".metrics.csv.host.1.partial"
    unfinished.touch()
    monkeypatch.setattr(FolderLock, "patience", 0.3)
    with FolderLock(tmp_path) as lock, pytest.raises(InputError, match=r"another run is writing to .*; wait until"):
        lock.take()
    assert unfinished.exists(), "it may belong to the other process"


@pytest.mark.parametrize("killed", [True, False])
def test_the_folder_is_free_when_the_other_process_has_ended(tmp_path, holder, killed):
    (tmp_path / "checkpoints").mkdir()
    unfinished = [tmp_path / ".metrics.csv.host.1.partial", tmp_path / "checkpoints/.last.ckpt.host.1.partial"]
    for path in unfinished:
        path.touch()
    if killed:
        holder.kill()
        holder.wait()
    else:
        threading.Timer(0.5, holder.stdin.close).start()
    with FolderLock(tmp_path) as lock:
        lock.take()
    assert not any(path.exists() for path in unfinished)
    with FolderLock(tmp_path) as lock:
        lock.take()  # the first lock was released
