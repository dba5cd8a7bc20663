"""Options of pytest, and fixtures of several test folders."""

import contextlib
import gc
import importlib
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

import deepweather
import pytest
import torch
import xarray as xr
from browser import CHROMIUM, Browser
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from kept import TWIN_PROGRAM, kept
from quick_report import blank_figures, few_parts, no_figures
from reach import Selection
from slurm_cluster import SlurmCluster, skip_without_slurm
from tested_device import check_tested_device
from torch.utils.data import Dataset
from twin_project import make_project, make_twin
from waiting import eventually, running_loaders

from data_pipeline.common import interruption
from data_pipeline.common.interruption import SIGNALS
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.samples.sample_reader import static_fields
from data_pipeline.task import Task

ROOT = Path(__file__).parents[1]
LONGEST = (
    "tests/end_to_end/test_rain_scores.py",
    "tests/end_to_end/test_preemption.py",
    "tests/end_to_end/test_progress_gaps.py",
    "tests/jobs/test_job_array.py",
    "tests/jobs/test_submitted.py",
    "tests/training/test_mesh.py",
    "tests/end_to_end/test_two_nodes.py",
    "tests/end_to_end/test_station_scores.py",
    "tests/end_to_end/test_processes.py",
    "tests/end_to_end/test_verbs.py",
    "tests/evaluation/test_mesh.py",
    "tests/models/test_contract_mesh.py",
    "tests/test_extending.py",
    "tests/test_tutorials.py",
    "tests/evaluation/monitoring/test_monitor.py",
    "tests/training/test_compile.py",
    "tests/training/test_local_steps.py",
    "tests/models/parallel/test_mesh.py",
    "tests/training/test_micro_batches.py",
    "tests/models/parallel/test_launch.py",
    "tests/models/test_contract.py",
)
"""The slowest files, those with long tests among them: `scripts/test` starts with them, so that both processes end at
about the same time."""

# Progress lines depend on the speed of the machine; tests of these lines show them again.
os.environ["DEEPWEATHER_PROGRESS"] = "off"

# Every machine tests the same examples; `HYPOTHESIS_PROFILE=explore make test` looks for new ones.
settings.register_profile("gate", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "gate")
settings.load_profile(PROFILE)
if PROFILE == "gate":
    # Hypothesis mixes numbers from all imported files of a project into its examples. Which files are imported depends
    # on the tests that the process ran before, and so would the examples.
    providers._get_local_constants = lambda: providers._local_constants


# These compile loops for 3 s and for 1 s where they find numba; their formulas in numpy give the same numbers.
if "numba" not in sys.modules:
    sys.modules["numba"] = None  # type: ignore[assignment]
    for name in ("scoringrules", "properscoring"):
        importlib.import_module(name)
    del sys.modules["numba"]

# Python looks for cycles after 700 new objects: 3.3 of the 55 CPU seconds of 265 tests. With these numbers it is 1.6.
gc.set_threshold(20_000, 20, 20)

# Commands that tests run in this process must not end it, and no signal may do so after them.
interruption.end_soon = sys.exit
interruption.install = partial(lambda install, *, at_once=False: install(), interruption.install)


def pytest_configure(config: pytest.Config) -> None:
    """Check the device, and handle SIGINT also where a background shell ignores it: tests interrupt commands."""
    check_tested_device()
    reset_signals()
    if path := config.getoption("reach"):
        config.pluginmanager.register(Selection(path, config))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `make results` and of `make test`."""
    parser.addoption("--all-years", action="store_true", help="leave out every year of the monsoon, not only some")
    parser.addoption("--reach", type=Path, metavar="MAP", help="run the test files that a change can break (reach.py)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    places = {ROOT / path: place for place, path in enumerate(LONGEST)}
    assert all(path.is_file() for path in places), "LONGEST names a file that does not exist"
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """Exempt all imported modules from garbage collection: collections during the tests are then short."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def samples() -> Path:
    """Folder of small real files, from DEEPWEATHER_SAMPLES or `shared/data` beside the checkout."""
    folder = Path(os.environ.get("DEEPWEATHER_SAMPLES", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real sample files: {folder} is no folder; set DEEPWEATHER_SAMPLES to their folder")
    return folder


def reset_signals() -> None:
    """Restore the handlers of signals that Python starts with."""
    for number, handler in zip(SIGNALS, (signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL), strict=True):
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def handlers_of_signals() -> Iterator[None]:
    """Restore the handlers of signals that a command has left, also one in a fixture of a file or of the session."""
    reset_signals()
    yield
    reset_signals()


@pytest.fixture(autouse=True)
def threads_of_loaders() -> Iterator[None]:
    """Let a test fail that leaves threads of a loader, and not the tests after it."""
    before = running_loaders()
    yield
    assert eventually(lambda: set(running_loaders()) <= set(before)), "the test has left threads that read ahead"


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A running Slurm cluster of two nodes, both of which are this machine."""
    skip_without_slurm()
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes=2) as cluster:
        yield cluster


class CommandResult(NamedTuple):
    """Exit code and output of a command."""

    code: int
    stdout: str
    stderr: str


def run_command(folder: Path, *arguments: str, pictures: bool = False, every_part: bool = False) -> CommandResult:
    """Run `deepweather ARGUMENTS` in `folder`, in this process: a new Python process takes seconds to start.

    The figures of a page are blank without `pictures`, and tables have few parts without `every_part`. References are
    EMOS of single cells: to choose a degree of sharing takes longer than most evaluations.
    """
    from models import reference_emos  # a file that is imported here does not count as one that every test reaches

    before = Path.cwd(), sys.argv, dict(os.environ)
    stdout, stderr = io.StringIO(), io.StringIO()
    drawing = not pictures and {"evaluate", "monitor"} & {*arguments}
    figures = blank_figures() if drawing else contextlib.nullcontext()
    parts = few_parts() if "evaluate" in arguments and not every_part else contextlib.nullcontext()
    cells = patch.dict(reference_emos.SPEC, shared=False)
    code = 0
    try:
        os.chdir(folder)
        sys.argv = ["deepweather", *arguments]
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr), figures, parts, cells:
            deepweather.main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    finally:
        os.chdir(before[0])
        sys.argv = before[1]
        os.environ.clear()
        os.environ.update(before[2])
        reset_signals()
    return CommandResult(code, stdout.getvalue(), stderr.getvalue())


@pytest.fixture(scope="session")
def command() -> Callable[..., CommandResult]:
    """The function that runs a command line in this process."""
    return run_command


@pytest.fixture(scope="module")
def without_figures() -> Iterator[None]:
    """Write reports without figures, which take most of the time of a short evaluation."""
    with no_figures():
        yield


@pytest.fixture(scope="session")
def first_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny twin and trained correctors (`twin_project.py`). Tests read it, and write into copies."""
    base = tmp_path_factory.getbasetemp()
    made = kept("project", lambda folder: make_project(folder, kept("twin", make_twin, base, TWIN_PROGRAM)), base)
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("first") / "project"))


@pytest.fixture(scope="module")
def project(first_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `first_project` for the tests of one file."""
    return Path(shutil.copytree(first_project, tmp_path_factory.mktemp("copy") / "project"))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A running browser; each page that a test opens is its own."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium; Debian: apt-get install chromium")
    folder = tmp_path_factory.mktemp("chromium")
    one = Browser(folder)
    yield one
    one.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True)
    if mount.returncode != 0:
        pytest.skip(f"mounting a small tmpfs needs root: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the user's cache of GRIB indices out of the tests."""
    os.environ["DEEPWEATHER_CACHE"] = str(tmp_path_factory.mktemp("cache"))


class Toy(Dataset):
    """Samples in memory: a signal, and an ensemble with a known bias and too little spread."""

    def __init__(self, task: Task, grid: Grid, count: int, members: int = 5, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        H, W = grid.shape
        self.task, self.grid, self.members = task, grid, members
        self.fingerprint = f"toy {task.to_json()} {grid} {count} {members} {seed}"
        self.static = static_fields(grid, replace(task, static=()), SimpleNamespace(static=xr.Dataset()))
        self.static = torch.cat([self.static, torch.rand(len(task.static), H, W, generator=generator)])
        C, targets = len(task.channels), list(task.target_channels)
        self.samples = []
        for k in range(count):
            centre = (
                280 + 10 * torch.randn(C, 1, 1, generator=generator) + 2 * torch.randn(C, H, W, generator=generator)
            )
            noise = 0.5 * torch.randn(members, C, H, W, generator=generator)
            truth = centre[targets] - 1.0 - self.static[0] + 1.0 * torch.randn(len(targets), H, W, generator=generator)
            self.samples.append(
                Sample(
                    ensemble=centre + noise,
                    mask=torch.ones(C, H, W, dtype=torch.bool),
                    static=self.static,
                    target=truth,
                    init_time=torch.tensor(1_000_000_000 + k * 4 * 86400),
                    lead_time=torch.tensor(task.lead_times[k % len(task.lead_times)]),
                )
            )

    @property
    def nbytes(self) -> int:
        """Bytes of one sample without its static fields."""
        return sum(tensor.nbytes for tensor in self.samples[0]) - self.static.nbytes

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]


@pytest.fixture(scope="session")
def toy() -> type[Toy]:
    """The class of toy data sets."""
    return Toy
