"""Python programs that start quickly: forks of a server that has already imported PyTorch and other slow modules.

`Program(["program.py", ...], cwd=folder)` has the interface of `subprocess.Popen`. The ranks that such a program
launches are forks of the same server, and so are those of `ranks.py`. A fork starts with one thread, like a new
process. It ends without clearing the modules, which takes longer than most programs; with `finalize=True` it ends like
a Python process.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import os
import pickle
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import reach

ROOT = Path(__file__).parents[1]
PRELOAD = (
    "torch.distributed.fsdp", "torch.utils.tensorboard", "pytorch_lightning", "matplotlib.pyplot", "cfgrib", "pytest",
    "hypothesis", "warm_kernels",
)  # fmt: skip
VERBS = (
    "training.train",
    "evaluation.evaluate",
    "evaluation.compare",
    "models.correct",
    "models.combine",
    "data_pipeline.prepare",
)
NUMBER = struct.Struct("!i")
_server: dict[str, str] = {}
"""The address of the server's socket, empty before the server starts."""


class Program:
    """A running program, with the arguments and methods of `subprocess.Popen` that tests need."""

    def __init__(self, args, *, cwd=None, env=None, stdin=None, stdout=None, stderr=None, text=False, **options):
        arguments = [str(argument) for argument in args if argument != sys.executable]
        theirs, self.stdin, self.stdout, self.stderr = [0, 1, 2], None, None, None
        if stdin == subprocess.PIPE:
            theirs[0], own = os.pipe()
            self.stdin = os.fdopen(own, "w" if text else "wb")
        elif stdin is not None and stdin >= 0:
            theirs[0] = os.dup(stdin)
        if stdout == subprocess.PIPE:
            own, theirs[1] = os.pipe()
            self.stdout = os.fdopen(own, "r" if text else "rb")
        if stderr == subprocess.PIPE:
            own, theirs[2] = os.pipe()
            self.stderr = os.fdopen(own, "r" if text else "rb")
        request = Request(arguments, str(cwd or Path.cwd()), dict(env or os.environ), **options)
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(_address())
        payload = pickle.dumps(tuple(request))
        socket.send_fds(self.connection, [NUMBER.pack(len(payload))], theirs)
        self.connection.sendall(payload)
        for number, descriptor in enumerate(theirs):
            if descriptor != number:
                os.close(descriptor)
        self.args, self.returncode, self.pid = args, None, self._receive()

    def _receive(self):
        data = self.connection.recv(NUMBER.size, socket.MSG_WAITALL)
        assert data, "the server that forks programs is gone"
        return NUMBER.unpack(data)[0]

    def poll(self):
        """Return the exit code, None while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        """Return the exit code when the program has ended."""
        if self.returncode is None:
            if not select.select([self.connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = os.waitstatus_to_exitcode(self._receive())
            self.connection.close()
        return self.returncode

    def communicate(self, timeout=None):
        """Return the rest of standard output and standard error when the program has ended."""
        read = {}
        streams = {name: stream for name in ("stdout", "stderr") if (stream := getattr(self, name))}
        threads = [
            threading.Thread(target=lambda name=name, stream=stream: read.update({name: stream.read()}), daemon=True)
            for name, stream in streams.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(timeout)
        return read.get("stdout"), read.get("stderr")

    def send_signal(self, number):
        """Send a signal to the program unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self):
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self):
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(args, *, cwd, timeout=300):
    """Run a program to its end with the project on its path; return the result like `subprocess.run`."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = Program(args, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        stdout, stderr = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(args, process.wait(), stdout, stderr)


class Request(NamedTuple):
    """A program to run: `arguments` are a script, or `-m` and a module, and the program's own."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]
    start_new_session: bool = False
    finalize: bool = False
    network: str = ""
    """File of the network namespace in which the program runs."""


def _address():
    """Return the address of the server's socket; start the server at the first call."""
    if not _server:
        folder = tempfile.TemporaryDirectory()
        atexit.register(folder.cleanup)
        address = f"{folder.name}/server"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(address)
        listening.listen(64)
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/scripts", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            # `scripts/deepweather.py` sets these variables before it imports PyTorch.
            "OMP_WAIT_POLICY": "PASSIVE", "TORCH_CPP_LOG_LEVEL": "FATAL",
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, __file__, address, str(listening.fileno())],
            env=environment, stdin=subprocess.PIPE, pass_fds=[listening.fileno()], start_new_session=True,
        )  # fmt: skip
        listening.close()
        # The server ends when its standard input is closed. `_server` keeps the pipe and the folder alive.
        _server.update(address=address, process=process, folder=folder)
    return _server["address"]


# Functions of the server.


def _preload():
    if reach.RECORDS in os.environ:
        reach.record()
    gc.set_threshold(20_000, 20, 20)  # as in conftest.py; forks inherit it
    for name in (*PRELOAD, *VERBS):
        importlib.import_module(name)
    for name in VERBS:
        # `runpy` warns if a module that it runs as `__main__` has been imported before.
        del sys.modules[name]
    gc.collect()
    gc.freeze()  # garbage collection in a fork would otherwise copy the memory of all imported modules


def _serve(listening):
    """Wait for requests. Only a fork returns, with the program that it must run."""
    while True:
        ready = select.select([listening, 0], [], [])[0]
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # monitors that have ended
                pass
        if 0 in ready:
            os._exit(0)
        connection, _ = listening.accept()
        header, descriptors, _, _ = socket.recv_fds(connection, NUMBER.size, 3)
        payload = b""
        while len(payload) < NUMBER.unpack(header)[0]:
            payload += connection.recv(65536)
        threads = list(Path("/proc/self/task").iterdir())
        assert len(threads) == 1, f"the server has {len(threads)} threads: a fork might wait for their locks forever"
        if os.fork() == 0:
            listening.close()
            if _monitored(connection, descriptors):
                return Request(*pickle.loads(payload))
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)


def _monitored(connection, descriptors):
    """Fork once more and return True in the child; send the child's process id and, at its end, its status."""
    pid = os.fork()
    if pid == 0:
        connection.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return True
    for descriptor in (0, 1, 2, *descriptors):
        os.close(descriptor)
    with contextlib.suppress(OSError):  # the requesting process may have ended
        connection.sendall(NUMBER.pack(pid))
    status = os.waitpid(pid, 0)[1]
    with contextlib.suppress(OSError):
        connection.sendall(NUMBER.pack(status))
    os._exit(0)


def _prepare(request):
    """Make this process equal to a new process, except for its imported modules."""
    import torch

    import models.parallel.launch

    if request.start_new_session:
        os.setsid()
    if request.network:
        enter_network(request.network)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    reach.adopt()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    known = set(sys.path)
    sys.path += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in known]
    popen = functools.partial(Program, finalize=request.finalize, network=request.network)
    models.parallel.launch.subprocess = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE)


def enter_network(file):
    """Move this process into the network namespace that a file of `ip netns` names."""
    library = ctypes.CDLL(None, use_errno=True)
    with Path(file).open() as namespace:
        if library.setns(namespace.fileno(), 0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {file}")


def _run(arguments):
    if arguments[0] == "-m":
        reach.note(reach.module(arguments[1]))
        sys.argv = arguments[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(sys.argv[0]).absolute().parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


def _exit_code(arguments):
    """Run the program and its exit functions; return the exit code of a Python process."""
    code = 0
    try:
        _run(arguments)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return code


if __name__ == "__main__":
    _server["address"] = sys.argv[1]
    _preload()
    _request = _serve(socket.socket(fileno=int(sys.argv[2])))
    _prepare(_request)
    if _request.finalize:
        _run(_request.arguments)
    else:
        os._exit(_exit_code(_request.arguments))
