"""Folders that many tests read and that take long to make: each is made once for each state of the program.

They lie in the user's cache folder, or in the folder of the session where that cannot be written. Their name has a hash
of all that their content depends on, so that no test sees the work of another program. Tests get copies.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

import torch
from reach import ALL_CODE, note

ROOT = Path(__file__).parents[1]
TWIN_PROGRAM = (
    "data_pipeline", "conf/__init__.py", "conf/prepare.yaml", "conf/cluster", "conf/data", "conf/shared", "conf/task",
    "scripts/deepweather.py",
)  # fmt: skip
"""The part of the program that a twin depends on."""
PROGRAM = ("data_pipeline", "models", "training", "conf", "scripts/deepweather.py")
"""The part that trained correctors depend on."""
MAKERS = ("tests/kept.py", "tests/twin_project.py")
SETTINGS = ("ATEN_", "DNNL_", "MKL_", "NPY_", "NUMBA_", "OMP_", "ONEDNN_", "OPENBLAS_", "DEEPWEATHER_DEVICE")
"""Beginnings of the names of variables that change results."""
NEWEST = 8
"""So many folders stay, and those that a session may be copying."""
COPYING = 600
"""Seconds in which a session has copied a folder."""


@functools.cache
def state_of_the_program(parts=PROGRAM):
    """Return a hash of these parts of the program, of its libraries, and of the processor's instructions."""
    digest = hashlib.sha256()
    for name in (*parts, *MAKERS):
        files = [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*"))
        for path in files:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    libraries = sorted(f"{found.name} {found.version}" for found in distributions())
    settings = sorted(f"{key}={value}" for key, value in os.environ.items() if key.startswith(SETTINGS))
    digest.update("\n".join([sys.version, torch.backends.cpu.get_cpu_capability(), *libraries, *settings]).encode())
    return digest.hexdigest()[:16]


def cache_folder():
    """Return the folder of kept folders in the user's cache; nothing else may be in it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deepweather-ci" / "kept"


def kept(name, make, fallback, parts=PROGRAM):
    """Return the folder that `make(folder)` fills, for this state of those `parts` of the program that decide it.

    Workers and sessions that need it at the same time wait for the first. A folder in the making has another name.
    """
    for base in (cache_folder(), fallback):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            base.mkdir(parents=True, exist_ok=True)
            folder = base / f"{name}-{state_of_the_program(parts)}"
            lock = stack.enter_context(folder.with_suffix(".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                partial = folder.with_suffix(".partial")
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                make(partial)
                partial.rename(folder)
                _remove_old(base)
            os.utime(folder)
            note(ALL_CODE)
            return folder
    raise AssertionError(f"neither {cache_folder()} nor {fallback} can be written")


def _remove_old(base):
    whole = [path for path in base.iterdir() if path.is_dir() and not path.suffix]
    folders = sorted(whole, key=lambda path: path.stat().st_mtime)
    for folder in folders[:-NEWEST]:
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > COPYING:
                shutil.rmtree(folder.rename(folder.with_suffix(".partial")))
