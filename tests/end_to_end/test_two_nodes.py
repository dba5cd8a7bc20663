"""Two nodes, as network namespaces that a link joins: they meet, train, and end when a node or the link fails.

The host name of both nodes stands for a loopback address, as on machines that Debian's installer has set up.
"""

import signal
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import ROOT
from equal_runs import check_equal_runs
from namespaces import TwoNodes, fault
from required import skip
from twin_project import QUICK, SPLIT, wait_for_line

pytestmark = pytest.mark.long

MINUTES = 1 / 6
"""Time-out of the runs; a rank on a busy machine answers much sooner."""
SOON = 60 * MINUTES + 60
"""Seconds in which a run ends after a failure, on a busy machine. TCP would try for a quarter of an hour."""
PROGRAM = """
import sys, time
import torch
from conf import leave
from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say
from models.parallel.mesh import join_mesh

try:
    with join_mesh([2, 2], "mesh", MINUTES) as mesh:
        BODY
except InputError as error:
    leave(error)
"""
EXCHANGES = """
    for step in range(100_000):
        total = int(mesh.sum(torch.tensor(mesh.rank)))
        if step == 0:
            print("connected", flush=True)
        time.sleep(0.01)
"""


@pytest.fixture
def nodes():
    if reason := fault():
        skip(reason)
    found = TwoNodes()
    yield found
    found.close()


@pytest.fixture
def program(tmp_path, nodes):
    """Start two ranks of a program on a node."""

    def start(node, body=EXCHANGES):
        text = PROGRAM.replace("MINUTES", str(MINUTES)).replace(
            "BODY", textwrap.indent(textwrap.dedent(body), " " * 8).strip()
        )
        (tmp_path / "program.py").write_text(text)
        return nodes.ranks(node, ["program.py"], count=2, folder=tmp_path)

    return start


def train(nodes, project, *options):
    """Start a run on four ranks, two on each node."""
    script = [ROOT / "scripts/deepweather.py", "train", *SPLIT, "model=unet", "trainer.mesh=[2,2]", *options]
    return [rank for node in range(2) for rank in nodes.ranks(node, script, count=2, folder=project)]


def train_to_the_end(nodes, project, *options):
    """Run to the end and return the standard output of each rank."""
    ends = ends_of(train(nodes, project, *options))
    assert [(code, errors) for code, _, errors in ends] == [(0, "")] * 4
    return [output for _, output, _ in ends]


def ends_of(ranks):
    """Return the exit code, standard output and standard error of each rank."""
    found = []
    for rank in ranks:
        output, errors = rank.communicate(timeout=900)
        found.append((rank.returncode, output, errors))
    return found


def check_silence(ranks):
    """Each rank of a node ends with one line: it waits in vain for the other node, or sees that its neighbour ended."""
    lines = []
    for number, (code, _, errors) in enumerate(ends_of(ranks)):
        assert code == 3, f"rank {number}: {errors}"
        (line,) = errors.splitlines()
        assert line.startswith("error: ")
        assert "another rank of the mesh" in line, f"rank {number}: {line}"
        lines.append(line)
    assert any("does not answer" in line for line in lines)


def test_two_nodes_train_to_the_numbers_of_one(project, nodes):
    outputs = train_to_the_end(nodes, project, *QUICK, "run_dir=runs/two_nodes")
    assert "in 2 x 1 tiles, batches shared by 2" in outputs[0]
    assert outputs[1:] == [""] * 3
    check_equal_runs(project / "runs/unet", project / "runs/two_nodes")


def test_a_late_and_slow_node_slows_the_run_down_and_does_not_end_it(program, nodes):
    """A link of 8 Mbit/s that works only some seconds after the start, and a rank that stops for some seconds."""
    body = """
        for step in range(20):
            total = mesh.sum(torch.full((2000,), float(mesh.rank)))
        say(f"sum {total.mean()}")
    """
    nodes.slow_down(1, "8mbit")
    nodes.cut()
    ranks = [*program(0, body), *program(1, body)]
    time.sleep(2)
    nodes.mend()
    time.sleep(0.5)
    ranks[3].send_signal(signal.SIGSTOP)
    time.sleep(2)
    ranks[3].send_signal(signal.SIGCONT)
    ends = ends_of(ranks)
    assert [(code, errors) for code, _, errors in ends] == [(0, "")] * 4
    assert ends[0][1] == "sum 6.0\n"


def test_training_resumes_after_the_link_was_cut(project, nodes):
    """Both nodes end within the time-out; the same command resumes from the last checkpoint."""
    options = ["trainer.epochs=5", "model.width=4", f"trainer.timeout_minutes={2 * MINUTES}"]
    ranks = train(nodes, project, *options, "run_dir=runs/cut")
    wait_for_line(ranks[0], "epoch   2")
    nodes.cut()
    began = time.monotonic()
    check_silence(ranks[:2])
    check_silence(ranks[2:])
    assert time.monotonic() - began < SOON
    nodes.mend()
    assert "resuming from" in train_to_the_end(nodes, project, *options, "run_dir=runs/cut")[0]
    train_to_the_end(nodes, project, *options, "run_dir=runs/whole")
    check_equal_runs(project / "runs/whole", project / "runs/cut")


def test_torchrun_on_two_nodes_trains_to_the_numbers_of_one(project, nodes):
    options = [ROOT / "scripts/deepweather.py", "train", *SPLIT, *QUICK, "model=unet", "trainer.mesh=[2,2]"]
    agents = [
        nodes.start(
            node,
            [
                sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2",
                "--rdzv-backend", "c10d", "--rdzv-id", "run", "--rdzv-endpoint", f"{nodes.addresses[0]}:29500",
                "--rdzv-conf", f"is_host={int(node == 0)}", "--local-addr", nodes.addresses[node],
                *options, "run_dir=runs/torchrun",
            ],
            folder=project, environment={"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, kind=subprocess.Popen,
        )
        for node in range(2)
    ]  # fmt: skip
    ends = ends_of(agents)
    assert [code for code, _, _ in ends] == [0, 0], ends
    check_equal_runs(project / "runs/unet", project / "runs/torchrun")
