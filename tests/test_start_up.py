"""The start of a command: what it imports before it works; and its end when the reader of its output has ended."""

import os
import subprocess
import sys
from pathlib import Path

import deepweather
import numpy as np
import pytest
from station_files import StationFiles

SCRIPT = Path(deepweather.__file__)
IMPORTED = """
import atexit, sys, deepweather
sys.argv = ["deepweather", *sys.argv[1:]]
atexit.register(lambda: print("imported:", *sys.modules))
deepweather.main()
"""
DATA = ["data=netcdf", "data.path=.", "data.split.train=[2000,2000]", "data.split.test=[2001,2001]"]
OPTIONS = [*DATA, "task.name=stations", "task.inputs=[2t]", "task.lead_times=[24]", "task.static=[]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the files of one station, with a forecast every ten days of two years, in degC."""
    random = np.random.default_rng(0)
    starts = np.arange("2000-01-01", "2001-12-20", 10, "datetime64[D]").astype("datetime64[h]")
    truth = random.normal(10, 3, (len(starts), 1))
    members = (truth + random.normal(0, 1, (len(starts), 5)))[:, None, :, None]
    files = StationFiles(
        ["1"], [50.0], [10.0], [100.0], starts, [24], {"t2m": members}, {"t2m": "degC"},
        starts + np.timedelta64(24, "h"), "t2m", truth,
    )  # fmt: skip
    return files.write(tmp_path_factory.mktemp("stations"))


def run(folder, words, **streams):
    """Run a command in a folder with a new Python process."""
    environment = os.environ | {"PYTHONPATH": f"{SCRIPT.parent}:{SCRIPT.parents[1]}", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, text=True, check=False, **streams)


def imported(folder, *words):
    """Run a command; return its exit code and the packages that it has imported."""
    ended = run(folder, ["-c", IMPORTED, *words], capture_output=True)
    modules = ended.stdout.rpartition("imported: ")[2].split()
    return ended.returncode, {name.partition(".")[0] for name in modules}, ended


@pytest.mark.parametrize("verb", ["train", "correct", "submit"])
def test_a_wrong_option_is_named_before_the_verb_is_imported(verb, tmp_path):
    """The user sees the error within a second; PyTorch alone takes two. One verb has groups of options."""
    code, packages, ended = imported(tmp_path, verb, "nonsense=1")
    assert (code, ended.stderr[:29]) == (2, "error: there is no option non")
    assert packages & {"numpy", "torch", "xarray"} == set()


@pytest.mark.parametrize("words", [["--help"], ["correct", "--cfg", "job"], ["prepare", *OPTIONS]], ids=" ".join)
def test_a_command_ends_silently_if_its_reader_has_ended(words, folder):
    """As in `deepweather ... | true`: it ends as a Unix command that the signal SIGPIPE ends."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = run(folder, [SCRIPT, *words], stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_small_data_import_no_package_for_large(folder):
    """Lightning takes 4 s, figures, Dask and units of physics half a second each."""
    heavy = {"pytorch_lightning", "torchmetrics", "matplotlib", "distributed", "numba", "xarray", "dask", "pint"}
    train = ["train", *OPTIONS, "model=emos", "model.shared=true", "run_dir=emos"]
    correct = ["correct", "corrector=emos/corrector.safetensors", "input=ensemble.nc", "output=out.nc"]
    for words in (train, correct):
        code, packages, ended = imported(folder, *words)
        assert code == 0, ended.stderr
        assert "torch" in packages
        assert packages & heavy == set()
