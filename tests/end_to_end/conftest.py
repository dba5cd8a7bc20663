"""A project on the tiny twin, prepared and trained once for all files of this folder."""

import fcntl
import os
import shutil

import pytest
from followed_page import without_suspicion
from twin_project import QUICK, SPLIT, TWIN


@pytest.fixture(scope="session")
def run_verb(command):
    """Run a verb that must succeed, without a false alarm about its data; return its output."""

    def run(folder, *arguments):
        ended = command(folder, *arguments)
        assert ended.code == 0, ended.stdout + ended.stderr
        return without_suspicion(ended.stdout)

    return run


@pytest.fixture(scope="session")
def run_failing_verb(command):
    """Run a verb that must fail with exit code `code` and one line on standard error; return that line."""

    def run(folder, *arguments, code=2):
        ended = command(folder, *arguments)
        assert ended.code == code, ended.stdout + ended.stderr
        (line,) = ended.stderr.splitlines()
        assert line.startswith("error: ")
        return line

    return run


@pytest.fixture(scope="session")
def first_project(tmp_path_factory, run_verb):
    """A folder in which the verbs have been run. The workers of pytest-xdist share it."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "twin_project"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "runs/unet/corrector.safetensors").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            run_verb(folder, "prepare", *TWIN)
            run_verb(folder, "train", *SPLIT, "model=emos", "run_dir=runs/emos")
            run_verb(folder, "train", *SPLIT, "model=unet", "run_dir=runs/unet", *QUICK)
    return folder


@pytest.fixture(scope="module")
def project(first_project, tmp_path_factory):
    """A copy of the project for the tests of one file."""
    return shutil.copytree(first_project, tmp_path_factory.mktemp("copy") / "project")
