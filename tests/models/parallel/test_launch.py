"""The ranks of a mesh as processes: start, failure and interruption. Each ends soon, with one line of explanation."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forks import Program
from waiting import eventually

from data_pipeline.common import interruption
from data_pipeline.common.errors import InputError, InterruptedRunError
from models.parallel import launch
from models.parallel.mesh import _report_lost_ranks, join_mesh

PRELUDE = """
import os, signal, sys, time
import torch
from conf import leave
from data_pipeline.common import interruption
from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.messages import say
from models.parallel import launch
from models.parallel.mesh import join_mesh

interruption.install()
launch.GRACE, interruption.ONE_SIGNAL = GRACE_SECONDS, SECONDS_OF_ONE
try:
    with join_mesh(SHAPE, "mesh", TIMEOUT) as mesh:
        BODY
except InputError as error:
    leave(error)
except KeyboardInterrupt:
    sys.exit(3)
"""
SOON = 180
"""Seconds after which a program counts as hanging, on a busy machine; timeouts of libraries are 10 minutes."""


@pytest.fixture
def script(tmp_path):
    """Start a program that makes a mesh of itself. It is a fork of a server unless `kind` is `subprocess.Popen`."""
    processes = []

    def start(
        body, shape=(1, 2), timeout=10.0, environment=None, kind=Program, grace=launch.GRACE,
        one_signal=interruption.ONE_SIGNAL, **options,
    ):  # fmt: skip
        text = PRELUDE.replace("GRACE_SECONDS", str(grace)).replace("SECONDS_OF_ONE", str(one_signal))
        text = text.replace("SHAPE", repr(list(shape))).replace("TIMEOUT", str(timeout))
        (tmp_path / "program.py").write_text(
            text.replace("BODY", textwrap.indent(textwrap.dedent(body), " " * 8).strip())
        )
        process = kind(
            [sys.executable, "program.py"], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})}, **options,
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def wait_for_end(process):
    stdout, stderr = process.communicate(timeout=SOON)
    return process.returncode, stdout, stderr.splitlines()


def wait_for(path):
    assert eventually(lambda: path.exists() and path.read_text()), f"{path} does not appear"
    return int(path.read_text())


def has_ended(pid):
    """Whether a process has ended; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("kind", [Program, subprocess.Popen], ids=["forked", "new processes"])
def test_ranks_connect_and_one_prints_to_stdout(script, kind):
    body = "say(f'{mesh.ranks} ranks, {int(mesh.sum(torch.tensor(mesh.rank)))}'); say('full', stderr=True)"
    assert wait_for_end(script(body, kind=kind)) == (0, "2 ranks, 1\n", ["full", "full"])


@pytest.mark.parametrize(("ending", "code"), [("pass", 0), ("raise InputError('taken')", 2)])
def test_threads_of_a_library_end_before_python_does_also_with_unfinished_exchanges(script, ending, code):
    # Threads of unfinished exchanges wait for Python's lock while Python ends: half of the runs were aborted.
    process = script(
        f"""
        import atexit, glob
        import torch.distributed as dist

        def threads():
            names = [open(task + "/comm").read() for task in glob.glob("/proc/self/task/*")]
            return sum("gloo" in name for name in names)

        sys.setswitchinterval(100)
        works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(200)]
        before = threads()
        atexit.register(lambda: say(str(before > 0) + ", " + str(threads())))
        del works
        {ending}
    """,
        finalize=True,
    )
    found, printed, lines = wait_for_end(process)
    assert (found, lines) == (code, ["error: taken"] * (code == 2))
    assert code or printed == "True, 0\n"


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("raise InputError('no file' if mesh.rank else 'too small')", ["error: no file", "error: too small"]),
        ("mesh.run_on_first(lambda: (_ for _ in ()).throw(InputError('taken')))", ["error: taken"]),
        ("if mesh.rank: raise InputError('part 1 cannot be read')\nmesh.sum(torch.ones(3))",
         ["another rank of the mesh is gone", "error: part 1 cannot be read"]),
    ],
    ids=["on both ranks", "of a function on the first rank", "on one rank, while the other waits"],
)  # fmt: skip
def test_each_error_of_the_ranks_is_printed_once(script, body, lines):
    code, _, found = wait_for_end(script(body))
    assert code == 2
    assert len(found) == len(lines)
    assert all(any(line in each for each in found) for line in lines), found


def test_a_bug_is_printed_with_its_traceback(script):
    code, _, lines = wait_for_end(script("print(1 / (mesh.rank - 1), file=sys.stderr); mesh.sum(torch.ones(1))"))
    assert code == 1
    # PyTorch puts the rank before each line.
    assert "[rank1]: ZeroDivisionError: division by zero" in lines
    assert any("Traceback" in line for line in lines)


@pytest.mark.parametrize(("end", "number"), [("os.kill(os.getpid(), 9)", 9), ("os.abort()", 6)])
def test_a_rank_that_is_killed_or_aborted_ends_the_others(script, end, number):
    """NCCL's watchdog thread aborts the process when a message fails."""
    body = f"mesh.sum(torch.ones(3))\nif mesh.rank: {end}\nmesh.sum(torch.ones(3))"
    code, _, lines = wait_for_end(script(body))
    assert code == 3
    said = [line for line in lines if f"rank 1 of 2 was killed by signal {number}" in line]
    assert len(said) == 1
    assert ("as NCCL does" if number == 6 else "run the same command again") in said[0]
    assert any("another rank of the mesh is gone" in line for line in lines)


def test_a_rank_that_does_not_answer_ends_the_others(script, tmp_path):
    process = script(
        """
        if mesh.rank == 1:
            open('pid', 'w').write(str(os.getpid()))
        while True:
            mesh.sum(torch.ones(3))
        """,
        timeout=0.2,
        grace=2.0,
    )
    os.kill(wait_for(tmp_path / "pid"), signal.SIGSTOP)
    code, _, lines = wait_for_end(process)
    assert code == 3
    assert any("another rank of the mesh does not answer" in line or "is gone" in line for line in lines)


def test_ctrl_c_reaches_every_rank_once(script, tmp_path):
    process = script("""
        stops = []
        signal.signal(signal.SIGINT, lambda *_: stops.append(1))
        open(f'pid{mesh.rank}', 'w').write(str(os.getpid()))
        while not mesh.sum(torch.tensor(len(stops))) == 2:
            time.sleep(0.01)
        time.sleep(0.3)
        say(f'stopped {len(stops)}')
        raise KeyboardInterrupt
    """)
    for rank in range(2):
        wait_for(tmp_path / f"pid{rank}")
    process.send_signal(signal.SIGINT)
    assert wait_for_end(process) == (3, "stopped 1\n", [])


def test_the_third_ctrl_c_kills_ranks_that_ignore_signals(script, tmp_path):
    """No two of them count as one, however soon they come: each is sent when all ranks have received the one before."""
    body = """
        signal.signal(signal.SIGINT, lambda *_: open(f'told{mesh.rank}', 'a').write('1'))
        open(f'pid{mesh.rank}', 'w').write(str(os.getpid()))
        while True:
            time.sleep(0.01)
    """
    process = script(body, one_signal=0.0)
    for rank in range(2):
        wait_for(tmp_path / f"pid{rank}")
    for times in ("1", "11"):
        process.send_signal(signal.SIGINT)
        assert eventually(lambda: [path.read_text() for path in tmp_path.glob("told*")] == 2 * [times])  # noqa: B023
    process.send_signal(signal.SIGINT)
    code, _, lines = wait_for_end(process)
    assert code == 3
    assert "was killed by signal 9" in lines[-1]


def test_ranks_end_with_the_process_that_started_them(script, tmp_path):
    process = script("""
        open(f'pid{mesh.rank}', 'w').write(str(os.getpid()))
        while True:
            mesh.sum(torch.ones(3))
            time.sleep(0.01)
    """)
    ranks = [wait_for(tmp_path / f"pid{rank}") for rank in range(2)]
    process.kill()
    assert eventually(lambda: all(map(has_ended, ranks))), "ranks outlive the process that started them"


STARTED = {"WORLD_SIZE": "3", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((2, 2), "mesh=[2, 2] is a mesh of 4 ranks, but 3 processes were started"),
        ((1, 3), "the 3 ranks of the run could not connect at 127.0.0.1:1"),
    ],
)
def test_ranks_that_do_not_fit_the_mesh_or_do_not_meet_end(script, shape, sentence):
    code, _, lines = wait_for_end(script("pass", shape=shape, timeout=0.05, environment=STARTED))
    assert code == 2
    assert sentence in lines[-1]


def test_an_invalid_mesh_is_refused():
    for shape in ([2], [1, 2, 2, 2, 1], [0, 2], [1, 1.5], [True, 2], 4):
        with pytest.raises(
            InputError,
            match=r"^mesh must be \[data, spatial\], .* or \[data, bands, sectors, channels\], each at least 1",
        ):
            join_mesh(shape).__enter__()


def test_an_nccl_error_about_a_lost_rank_is_an_interrupted_run():
    """PyTorch's watchdog ends the communication; the next exchange then raises an error with these messages."""
    for message, sentence in (
        ("NCCL communicator was aborted on rank 1.",
         r"another rank of the mesh is gone \(NCCL communicator was aborted on rank 1\); see its own error"),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
         "Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
         "another rank of the mesh does not answer"),
    ):  # fmt: skip
        with pytest.raises(InterruptedRunError, match=sentence) as info, _report_lost_ranks():
            raise dist.DistBackendError(message)
        assert info.value.exit_code == 3


@pytest.mark.parametrize("own", [None, "1"], ids=["by default", "the user's own"])
def test_nccl_raises_errors_unless_the_user_wants_otherwise(own, monkeypatch):
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    # Undone at the end of the test, whatever is set in between.
    monkeypatch.setenv(name, own or "")
    if own is None:
        monkeypatch.delenv(name)
    for key, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(key, value)

    def no_meeting(*arguments, **options):
        raise ValueError("no meeting in a test")

    monkeypatch.setattr(dist, "rendezvous", no_meeting)
    with pytest.raises(InputError, match="could not connect at nowhere:1"), join_mesh([2, 1]):
        pass
    assert os.environ[name] == ("2" if own is None else own)


@pytest.mark.parametrize(("visible", "backend"), [(False, "gloo"), (True, "cpu:gloo,cuda:nccl")])
def test_ranks_exchange_tensors_of_cpus_also_where_there_are_gpus(visible, backend, monkeypatch):
    """Fits sum tensors of the CPU. PyTorch's default is NCCL alone where it sees a GPU."""
    for key, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: visible)
    monkeypatch.setattr(dist, "rendezvous", lambda *arguments, **options: iter([(None, 0, 2)]))
    given = []

    def no_group(backend=None, **options):
        given.append(backend)
        raise ValueError("no group in a test")

    monkeypatch.setattr(dist, "init_process_group", no_group)
    with pytest.raises(InputError, match="could not connect"), join_mesh([2, 1]):
        pass
    assert given == [backend]
