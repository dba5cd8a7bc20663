"""A tiny twin with three trained correctors, its verbs in processes of their own, and the messages of its files."""

import os
import pickle
import shutil
import subprocess
import sys

import deepweather
import eccodes
from forks import ROOT, Program

TWIN = ["data.generator.first_year=2010", "data.generator.dates=4", "data.generator.members=5"]
SPLIT = ["data.split.train=[2010,2014]", "data.split.val=[2015,2015]"]
QUICK = ["trainer.epochs=2", "model.width=4"]
FORECAST = "data/twin/output.sfc.20180108"


def make_twin(folder):
    """Write the twin into a folder."""
    _run(folder, ["prepare", *TWIN])


def make_project(folder, twin):
    """Copy the `twin` into a folder, and train an EMOS, an MLP and a U-Net for its 2 m temperature."""
    shutil.copytree(twin, folder, dirs_exist_ok=True)
    networks = {name: [f"model={name}", *QUICK] for name in ("mlp", "unet")}
    trainings = {"emos": ["model=emos", "model.shared=false"]} | networks
    _run(folder, *(["train", *SPLIT, *words, f"run_dir=runs/{name}"] for name, words in trainings.items()))


def _run(folder, *commands):
    from conftest import run_command
    from followed_page import without_suspicion

    for words in commands:
        ended = run_command(folder, *words)
        assert ended.code == 0, ended.stderr
        without_suspicion(ended.stdout)


def make_datasets(folder):
    """Keep the datasets of `deepweather.twin()` in a folder; `read_datasets` reads them."""
    for number, data in enumerate(deepweather.twin()):
        (folder / str(number)).write_bytes(pickle.dumps(data.load()))


def read_datasets(folder):
    """Return the ensemble and the analysis that `make_datasets` has kept."""
    return tuple(pickle.loads((folder / str(number)).read_bytes()) for number in range(2))


def start(folder, *words, kind=Program):
    """Start a verb in its own process: a fork of a server, or a new process if `kind` is `subprocess.Popen`."""
    return kind(
        [sys.executable, ROOT / "scripts/deepweather.py", *words], cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_line(process, words):
    """Read the output of a process up to a line with these words."""
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"{words} is not printed: {process.communicate(timeout=900)[1]}")


def messages(path):
    """Yield an ecCodes handle for each message of a file."""
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            yield handle
            eccodes.codes_release(handle)


def keys(handle, *namespaces):
    """Return the keys of a message in some namespaces of ecCodes, by default "ls", as texts."""
    found = {}
    for namespace in namespaces or ("ls",):
        iterator = eccodes.codes_keys_iterator_new(handle, namespace)
        while eccodes.codes_keys_iterator_next(iterator):
            name = eccodes.codes_keys_iterator_get_name(iterator)
            found[name] = eccodes.codes_get_string(handle, name)
        eccodes.codes_keys_iterator_delete(iterator)
    return found
