"""Progress lines: when they appear, what they say, and that they disturb no other output."""

import multiprocessing
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT
from waiting import eventually

from data_pipeline.common import progress
from data_pipeline.common.progress import Progress, hide_progress, show_progress, watched

LIMIT = 60.0
"""Seconds after which a test fails; it waits no longer than it must."""


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set; `clock.now` is its time."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def fast(monkeypatch):
    """Show lines, and do so within hundredths of a second."""
    monkeypatch.delenv("DEEPWEATHER_PROGRESS")
    for name in ("FIRST", "EVERY", "FIRST_IN_PLACE", "EVERY_IN_PLACE"):
        monkeypatch.setattr(progress, name, 0.02)


def is_shown():
    return any(thread.name == "progress" for thread in threading.enumerate())


def test_a_line_names_count_label_and_times_and_an_estimate_where_there_is_one(clock):
    """Nothing is left of finished work, and nothing is known of work of unknown length."""
    work = Progress("work: piece", 12)
    clock.now += 3
    assert work.text() == "work: piece 0 of 12 after 0:03"
    work.step("a")
    assert work.text() == "work: piece 1 of 12 (a) after 0:03, about 0:33 to go"
    work = Progress("work", 1)
    work.step()
    assert work.text() == "work 1 of 1 after 0:00"
    work = Progress("reading")
    clock.now += 61
    assert work.text() == "reading, 1:01 so far"
    work.step("file")
    assert work.text() == "reading 1 (file), 1:01 so far"


def test_the_estimate_leaves_out_a_slow_first_step_and_steps_of_an_earlier_run(clock):
    work = Progress("work", 5)
    for seconds in (40, 2, 2):
        clock.now += seconds
        work.step()
    assert work.remaining() == pytest.approx(4)
    resumed = Progress("work", 100, done=90)
    clock.now += 5
    assert resumed.remaining() is None
    resumed.reach(91)
    assert resumed.remaining() == pytest.approx(45)


def test_the_estimate_counts_down_within_a_step_and_never_forgets_the_steps_after_it(clock):
    work = Progress("work", 4)
    for _ in range(2):
        clock.now += 10
        work.step()
    assert work.remaining() == pytest.approx(20)
    clock.now += 6
    assert work.remaining() == pytest.approx(14)
    clock.now += 60
    assert work.remaining() == pytest.approx(10)


def test_the_innermost_work_is_shown_and_then_the_outer_again(fast, capsys):
    with show_progress("verb"):
        assert eventually(lambda: "verb: working" in capsys.readouterr().out)
        with Progress("outer", 2):
            assert eventually(lambda: "outer 0 of 2" in capsys.readouterr().out)
            with Progress("inner", 5):
                assert eventually(lambda: "inner 0 of 5" in capsys.readouterr().out)
            assert eventually(lambda: "outer 0 of 2" in capsys.readouterr().out)


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({}, True),
        ({"RANK": "0"}, True),
        ({"RANK": "1"}, False),
        ({"SLURM_PROCID": "1", "RANK": "0"}, True),
        ({"DEEPWEATHER_PROGRESS": "off"}, False),
    ],
)
def test_only_the_first_rank_shows_lines_and_only_where_they_are_wanted(fast, monkeypatch, capsys, variables, shown):
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with show_progress("verb"), Progress("work", 1):
        assert is_shown() is shown
        if shown:
            assert eventually(lambda: "work" in capsys.readouterr().out)
    assert not is_shown()


def test_a_command_whose_output_is_a_text_shows_nothing_else(fast):
    for words, shown in (
        (["a=-1", "-m"], True),
        (["--help"], False),
        (["--cfg", "job"], False),
        (["--dry-run"], False),
    ):
        with show_progress("verb", words):
            assert is_shown() is shown


def test_short_work_a_library_and_a_command_that_has_started_its_ranks_are_silent(fast, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(progress, "FIRST", LIMIT)
        with show_progress("verb"):
            assert list(watched(range(10_000), "work")) == list(range(10_000))
    with Progress("work", 1):
        assert not is_shown()
    with show_progress("verb"):
        hide_progress()
        with Progress("work", 1):
            assert not is_shown()
    assert capsys.readouterr().out == ""


def test_a_fork_is_silent_and_does_not_wait_for_the_thread(fast, capfd):
    """Forks while the thread prints; a copied lock would hang the child."""

    def child():
        with Progress("child", 1):
            time.sleep(0.1)
        print("end of the child", flush=True)

    with show_progress("verb"), Progress("work", 1):
        for _ in range(5):
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
            process.join(LIMIT)
            assert process.exitcode == 0
    out = capfd.readouterr().out
    assert out.count("end of the child") == 5
    assert "child 0 of 1" not in out


def test_the_thread_takes_no_signal_from_the_main_thread(fast):
    """A signal of the process wakes the main thread from its system call, although the other thread runs too."""
    previous = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        with show_progress("verb"):
            (thread,) = (each for each in threading.enumerate() if each.name == "progress")
            status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    finally:
        signal.signal(signal.SIGUSR2, previous)
    blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        assert blocked >> (number - 1) & 1
        assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


PROGRAM = """
import sys, time
from data_pipeline.common import progress
progress.FIRST = progress.EVERY = progress.FIRST_IN_PLACE = progress.EVERY_IN_PLACE = 0.05
with progress.show_progress("verb"), progress.Progress("work: piece", 3) as work:
    for name in "abc":
        time.sleep(0.3)
        work.step(name)
        print(f"message {name}")
        print(f"warning {name}", file=sys.stderr)
    print("half a", end=" ", flush=True)
    time.sleep(0.3)
    print("line")
"""


def on_terminal(program, *, columns=80):
    """Run a Python program on a pseudo-terminal; return everything that it wrote there."""
    ours, theirs = pty.openpty()
    environment = os.environ | {
        "DEEPWEATHER_PROGRESS": "",
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
        "COLUMNS": str(columns),
    }
    process = subprocess.Popen([sys.executable, "-c", program], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    written, end = b"", time.monotonic() + LIMIT
    while time.monotonic() < end:
        if select.select([ours], [], [], 1)[0]:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # the program has closed the terminal
                break
            written += chunk
    os.close(ours)
    assert process.wait(LIMIT) == 0
    return written.decode()


def screen_of(written):
    """Return the lines that a terminal shows; it knows the two sequences that progress uses."""
    lines = [""]
    for part in re.split(r"(\r\x1b\[K|\r?\n)", written):
        if part == "\r\x1b[K":
            lines[-1] = ""
        elif part.endswith("\n"):
            lines.append("")
        else:
            lines[-1] += part
    return lines


def test_on_a_terminal_one_line_is_replaced_and_messages_stay():
    written = on_terminal(PROGRAM)
    lines = screen_of(written)
    assert [line for line in lines if not line.startswith("work")] == [
        "message a", "warning a", "message b", "warning b", "message c", "warning c", "half a line", "",
    ]  # fmt: skip
    assert sum(line.startswith("work") for line in lines) == 1, "the last line"
    assert lines[-2].startswith("work: piece 3 of 3 (c) after 0:0")
    assert written.count("\r\x1b[Kwork: piece 0 of 3 after 0:0") >= 2
    assert written.count("work: piece 1 of 3 (a) after 0:0") >= 2


def test_a_line_that_is_wider_than_the_terminal_is_cut():
    """A line of two rows could not be replaced."""
    drawn = re.findall(r"\r\x1b\[K(work[^\r\n]*)", on_terminal(PROGRAM, columns=20))
    assert "work: piece 1 of..." in drawn
    assert all(len(line) < 20 for line in drawn[:-1])


def test_a_pipe_whose_reader_has_gone_ends_no_work():
    program = PROGRAM.split("    for")[0] + "    time.sleep(0.5)\nsys.stdout = None\n"
    ours, theirs = os.pipe()
    os.close(ours)
    environment = os.environ | {"DEEPWEATHER_PROGRESS": "", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", program], stdout=theirs, stderr=subprocess.PIPE, timeout=LIMIT, text=True,
        env=environment, check=False,
    )  # fmt: skip
    os.close(theirs)
    assert (ended.stderr, ended.returncode) == ("", 0)
