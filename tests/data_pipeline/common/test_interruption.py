"""Signals end a run with exit code 3, at whatever moment they arrive. Each case is a process of its own."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from conftest import ROOT

from data_pipeline.common import interruption

LIMIT = 60
"""Seconds after which a process counts as hanging."""
PRELUDE = """
import os, signal, sys, threading, time
from data_pipeline.common import interruption
def tell(text): print(text, flush=True)
"""


@pytest.fixture
def program():
    """Start a Python program in a process, and wait until it prints `ready`, unless `ready` is false."""
    processes = []

    def start(body, *, command=(), ready=True, **options):
        text = PRELUDE + textwrap.dedent(body)
        process = subprocess.Popen(
            [*command, sys.executable, "-c", text], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            **options,
        )  # fmt: skip
        processes.append(process)
        if ready:
            assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def ended(process):
    """Return the exit code and the rest of both outputs."""
    if process.stdin:
        process.stdin.close()
    timer = threading.Timer(LIMIT, process.kill)
    timer.start()
    # Not `communicate`, which would miss what `readline` has read ahead.
    stdout, stderr = process.stdout.read(), process.stderr.read()
    timer.cancel()
    return process.wait(LIMIT), stdout, stderr


def test_a_signal_at_the_start_ends_the_process_with_one_line(program):
    process = program("interruption.install(at_once=True); tell('ready'); time.sleep(100)")
    process.send_signal(signal.SIGUSR1)
    assert ended(process) == (3, "", f"error: {interruption.INTERRUPTED}\n")


def test_a_signal_before_the_handler_waits_for_it(program):
    """`env --block-signal` blocks the signals of the process before Python starts."""
    process = program(
        "tell('ready'); sys.stdin.readline(); interruption.install(at_once=True); time.sleep(100)",
        command=["env", "--block-signal=USR1,TERM"], stdin=subprocess.PIPE,
    )  # fmt: skip
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGTERM)
    process.stdin.write("go\n")
    assert ended(process)[0] == 3


DEFERRED = """
interruption.install()
with interruption.deferred() as deferral:
    deferral.worth_waiting = WORTH
    try:
        tell('ready')
        while not os.path.exists(sys.argv[0] + 'never') and not interruption.requested():
            time.sleep(0.01)
        BODY
    except KeyboardInterrupt:
        tell('interrupted')
"""


def deferred(body, worth=True):
    return DEFERRED.replace("WORTH", str(worth)).replace(
        "BODY", textwrap.indent(textwrap.dedent(body), " " * 8).strip()
    )


@pytest.mark.parametrize(
    ("first", "second", "one_signal", "words"),
    [
        (signal.SIGTERM, signal.SIGTERM, 1000, "waited\n"),
        (signal.SIGUSR1, signal.SIGTERM, 0, "waited\n"),
        (signal.SIGTERM, signal.SIGTERM, 0, "interrupted\n"),
    ],
    ids=["at the same time", "of another kind", "again"],
)
def test_only_a_second_signal_of_the_same_kind_is_in_a_hurry(program, first, second, one_signal, words):
    body = deferred("tell('ready'); sys.stdin.readline(); tell('waited')")
    process = program(f"interruption.ONE_SIGNAL = {one_signal}{body}", stdin=subprocess.PIPE)
    process.send_signal(first)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(second)
    if words == "waited\n":
        process.stdin.write("go\n")
    assert ended(process) == (0, words, "")


@pytest.mark.parametrize(
    ("number", "patience", "body", "worth", "words"),
    [
        (signal.SIGTERM, 3, "tell('saved')", False, "interrupted"),
        (signal.SIGINT, 0.2, "while True: time.sleep(0.01)", True, "interrupted"),
        (signal.SIGUSR1, 0.01, "time.sleep(0.3); tell('saved')", True, "saved"),
    ],
    ids=["nothing would be lost", "Ctrl-C and a step that does not end", "a time limit and a long step"],
)
def test_what_waits_for_the_end_of_a_step(program, number, patience, body, worth, words):
    process = program(f"interruption.PATIENCE = {patience}{deferred(body, worth)}")
    process.send_signal(number)
    assert ended(process) == (0, f"{words}\n", "")


def wait_until_asleep(process):
    """Wait until the main thread of a process is in a system call that waits, at several looks in a row."""
    until, looks = time.monotonic() + LIMIT, 0
    while looks < 5:
        assert time.monotonic() < until
        time.sleep(0.05)
        state = Path(f"/proc/{process.pid}/task/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        looks = looks + 1 if state == "S" else 0


def test_a_library_that_does_not_return_is_ended(program):
    """Python's handler never runs: the main thread reads a pipe in C, where an interrupted call starts again."""
    process = program("""
        import ctypes
        interruption.AT_MOST = 0.2
        interruption.install()
        libc, ends = ctypes.CDLL(None), os.pipe()
        for each in interruption.SIGNALS:
            libc.siginterrupt(each, 0)
        tell('ready')
        libc.read(ends[0], ctypes.create_string_buffer(1), 1)
        tell('returned')
    """)
    wait_until_asleep(process)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (3, "", f"error: {interruption.INTERRUPTED}\n")


@pytest.mark.parametrize(
    ("handlers", "code"),
    [("install()", 3), ("handled(); handlers.__enter__()", 0)],
    ids=["a command", "a program such as a notebook"],
)
def test_a_slow_end_is_cut_short_but_in_programs_of_others(program, handlers, code):
    process = program(f"""
        interruption.AT_MOST = 0.1
        handlers = interruption.{handlers}
        try:
            tell('ready')
            time.sleep(1000)
        except KeyboardInterrupt:
            time.sleep(1)
            tell('saved')
    """)
    process.send_signal(signal.SIGTERM)
    output, errors = ("", f"error: {interruption.INTERRUPTED}\n") if code else ("saved\n", "")
    assert ended(process) == (code, output, errors)


def test_the_third_signal_of_a_kind_ends_the_process(program):
    process = program("""
        interruption.ONE_SIGNAL, interruption.AT_MOST = 0, 1000
        interruption.install()
        word = 'ready'
        while True:
            try:
                said, word = word, 'ignored'
                tell(said)
                time.sleep(100)
            except KeyboardInterrupt:
                pass
    """)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "ignored\n"
    process.send_signal(signal.SIGTERM)
    code, stdout, stderr = ended(process)
    assert (code, stderr) == (3, f"error: {interruption.INTERRUPTED}\n")
    assert stdout in ("", "ignored\n")


CHILD = """
import sys, signal
from data_pipeline.common import interruption
print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)
sys.stdin.readline()
interruption.install(at_once=True)
sys.exit(7)
"""


def test_a_child_that_starts_with_blocked_signals_receives_them_later(program):
    process = program(f"CHILD = {CHILD!r}" """
import subprocess
interruption.install()
with interruption.blocked():
    child = subprocess.Popen([sys.executable, '-c', CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
tell(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []))
tell(child.stdout.readline().strip())
child.send_signal(signal.SIGTERM)
child.communicate('go')
tell(child.returncode)
    """, ready=False)  # fmt: skip
    code, stdout, stderr = ended(process)
    assert (code, sorted(stdout.split())) == (0, ["3", "False", "True"])
    assert stderr == f"error: {interruption.INTERRUPTED}\n"


def test_a_signal_while_children_start_is_handled_after_it():
    done = []

    def start():
        with interruption.blocked():
            signal.raise_signal(signal.SIGUSR1)
            done.append("started")
        done.append("not interrupted")

    with interruption.handled(), pytest.raises(KeyboardInterrupt):
        start()
    assert done == ["started"]


def test_a_forked_child_does_not_end_its_parent(program):
    process = program("""
        interruption.AT_MOST = 0.01
        interruption.install()
        ends = os.pipe()
        if (child := os.fork()) == 0:
            try:
                tell('ready')
                os.write(ends[1], b'.')
                time.sleep(100)
            except KeyboardInterrupt:
                os._exit(5)
        os.read(ends[0], 1)
        os.kill(child, signal.SIGTERM)
        tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        time.sleep(0.1)
        tell(interruption.requested())
    """)
    assert ended(process) == (0, "5\nFalse\n", "")


def test_a_background_process_still_ignores_ctrl_c(program):
    process = program(
        "signal.signal(signal.SIGINT, signal.SIG_IGN); interruption.install(); tell('ready'); sys.stdin.readline()",
        stdin=subprocess.PIPE,
    )
    process.send_signal(signal.SIGINT)
    process.stdin.write("go\n")
    assert ended(process) == (0, "", "")


def test_an_interrupted_command_ends_soon_after_its_exit_functions(program):
    """Neither a thread that still reads nor a slow exit function delays the end."""
    process = program("""
        import atexit
        from conf import reporting
        interruption.CLEAN_UP = 1
        atexit.register(time.sleep, 1000)
        atexit.register(tell, 'cleaned')
        with reporting():
            threading.Thread(target=time.sleep, args=(1000,)).start()
            tell('ready')
            time.sleep(1000)
    """)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (3, "cleaned\n", f"error: {interruption.INTERRUPTED}\n")


def test_a_signal_does_not_change_the_code_of_a_command_that_has_ended(program):
    """Python clears the modules, which calls `__del__`: it has no handlers any more."""
    process = program("""
        import atexit
        class Late:
            def __del__(self, tell=tell, wait=sys.stdin.readline):
                tell('ready')
                wait()
                tell('cleared')
        interruption.install(at_once=True)
        atexit.register(interruption.ignore)
        late = Late()
    """, stdin=subprocess.PIPE)  # fmt: skip
    process.send_signal(signal.SIGUSR1)
    process.stdin.write("go\n")
    assert ended(process) == (0, "cleared\n", "")


@pytest.mark.parametrize("number", interruption.SIGNALS, ids=lambda number: number.name)
def test_handlers_of_a_program_are_restored(number):
    before = [signal.getsignal(number) for number in interruption.SIGNALS]
    with interruption.handled(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
    assert interruption.requested()
    assert [signal.getsignal(number) for number in interruption.SIGNALS] == before
