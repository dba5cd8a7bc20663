"""Evaluation by the workers of a Dask cluster, and after the end of a process at any moment: the same scores."""

import re
import signal

import forks
import pytest
from equal_runs import check_equal_scores, read_scores
from twin_project import SPLIT

pytestmark = pytest.mark.usefixtures("without_figures")

EMOS = "emos: runs/emos/corrector.safetensors"
OPTIONS = [*SPLIT, f"correctors={{{EMOS}}}"]
KILLED = """
import os, runpy, signal, sys
from evaluation.scoring import partial_scores
from evaluation.scoring import scoring
partial_scores.EVERY_SECONDS, partial_scores.WRITING_SHARE = 0, float("inf")
shown = []
def reach(self, done, label=""):
    if self.name.startswith("scoring"):
        shown.append(done)
    if len(shown) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
scoring.Progress.reach = reach
sys.argv[:] = ["deepweather", *sys.argv[1:]]
runpy.run_module("deepweather", run_name="__main__")
"""


@pytest.fixture(scope="module")
def expected(project, run_verb):
    run_verb(project, "evaluate", *OPTIONS, "run_dir=runs/whole", "batch_size=7")
    return read_scores(project / "runs/whole")


def test_a_dask_cluster_gives_the_same_scores(project, run_verb, expected):
    """A network is scored beside them, to see that workers get it."""
    correctors = f"correctors={{{EMOS}, unet: runs/unet/corrector.safetensors}}"
    options = ["cluster=local", "cluster.workers=1", "batch_size=3"]
    run_verb(project, "evaluate", *SPLIT, correctors, "run_dir=runs/dask", *options)
    found = read_scores(project / "runs/dask")
    assert found["/models/unet/crps"] > 0
    models = [key for key in expected if re.match("/(models/(raw|emos|climatology)|oracle)/", key)]
    check_equal_scores({key: found[key] for key in models}, {key: expected[key] for key in models}, 1e-10)


def test_a_killed_evaluation_continues(project, run_verb, expected):
    """The process ends by SIGKILL after three batches; the same command scores only the other forecasts."""
    command = [*OPTIONS, "run_dir=runs/killed", "batch_size=1"]
    (project / "killed.py").write_text(KILLED)
    assert forks.run(["killed.py", "evaluate", *command], cwd=project).returncode == -signal.SIGKILL
    folder = project / "runs/killed"
    assert [path.name for path in folder.iterdir()] == ["partial_scores_0000.npz"]
    assert "3 of 8 forecasts were scored by an earlier run" in run_verb(project, "evaluate", *command)
    check_equal_scores(read_scores(folder), expected, 1e-10)
    assert not (folder / "partial_scores_0000.npz").exists()
