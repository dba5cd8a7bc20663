"""Interruption: SIGINT (Ctrl-C), SIGTERM and SIGUSR1 end a run with exit code 3; the same command then resumes it.

    install(at_once=True)         # first statement of the program: a signal ends it at once
    install()                     # when the verb starts: a signal raises KeyboardInterrupt in the main thread
    with deferred() as deferral:  # in training: a signal only sets a flag, and the step ends
        deferral.worth_waiting = True

A process that starts with these signals blocked (`env --block-signal=USR1,TERM deepweather ...`) receives them when
the handler is installed. Signals that arrive within a second count as one, because Slurm, a launcher and a terminal may
each send one. If the main thread is inside a library and cannot handle a signal, or is slow to end, another thread ends
the process, but never a program that only calls the functions of this project, such as a notebook.
"""

from __future__ import annotations

import _thread
import atexit
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

from data_pipeline.common.errors import InterruptedRunError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
INTERRUPTED = "interrupted; run the same command again to resume"
ONE_SIGNAL = 1.0
"""Seconds within which several signals count as one."""
INSISTING = 3
"""The third signal of a kind ends the process in any case."""
CLEAN_UP = 1.0
"""Seconds after which an interrupted process ends, even if its exit functions have not finished."""
PATIENCE = 3.0
"""Seconds that Ctrl-C waits for the end of a step, and that training waits for a library to return to Python."""
AT_MOST = 2.0
"""Seconds after which a signal has ended any command that is not in training, whatever it still does."""


@dataclass(eq=False)
class Deferral:
    """How long a signal waits inside `deferred()`."""

    worth_waiting: bool = False
    """Whether a signal waits for the end of the step, because there is work that no checkpoint holds."""
    seconds: float = math.inf
    """Seconds of the shortest step. Ctrl-C waits `PATIENCE` plus twice this time, so not for a step that compiles."""


@dataclass(eq=False)
class _State:
    """The signals that this process has received since `install`, and what happens at the next one."""

    at_once: bool = False
    of_command: bool = True
    """Whether the process is a command, which may be ended."""
    forward: Callable[[int], None] | None = None
    deferral: Deferral | None = None
    count: int = 0
    kinds: set[int] = field(default_factory=set)
    last: float = -ONE_SIGNAL
    overdue: bool = False
    answered: threading.Event = field(default_factory=threading.Event)


_state = _State()
_watch: list[socket.socket] = []
"""Both ends of the connection on which Python's C handler sends the numbers of signals to the watching thread."""


def install(*, at_once: bool = False) -> None:
    """Handle the signals from now on, forget earlier ones, and unblock them; only in the main thread.

    With `at_once`, a signal ends the process: there is nothing to save while modules are imported or a command ends.
    """
    global _state
    if threading.current_thread() is not threading.main_thread():
        return
    _state = _State(at_once)
    _start_watching()
    for number in SIGNALS:
        # A background process of a shell without job control must ignore the Ctrl-C of its terminal.
        if number != signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def ignore() -> None:
    """Ignore the signals from now on; this is the last exit function of a command, when its exit code is known.

    Otherwise, Python restores the signals' default action when it clears its modules, and a signal would then end a
    finished command as if it had been killed.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def requested() -> bool:
    """Return whether a signal has arrived since `install`."""
    return _state.count > 0


@contextmanager
def handled() -> Iterator[None]:
    """Handle the signals inside the block, also in a program that has not called `install`."""
    if threading.current_thread() is not threading.main_thread() or _is_installed():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    install()
    _state.of_command = False
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def deferred() -> Iterator[Deferral]:
    """Let a signal in the block only set a flag (`requested`) while `worth_waiting`; else it raises KeyboardInterrupt.

    A second signal of the same kind raises KeyboardInterrupt at once, and Ctrl-C does so after a while.
    """
    with handled():
        deferral = _state.deferral = Deferral()
        try:
            yield deferral
        finally:
            _state.deferral = None


@contextmanager
def blocked() -> Iterator[None]:
    """Block the signals in the `with` block; processes started there inherit the mask and receive no signals.

    Signals to this process are handled when the `with` block ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    # Only this thread blocks the signals: another thread may receive one, and Python would handle it in this thread.
    before = {each: signal.signal(each, lambda number, _: received.append(number)) for each in SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
        for number in dict.fromkeys(received):
            signal.raise_signal(number)


def forward_to(function: Callable[[int], None]) -> None:
    """Call `function(number)` at each signal and do nothing else; for a process that only waits for other processes."""
    if not _is_installed():
        install()
    _state.forward = function


def end_now(message: str = INTERRUPTED) -> NoReturn:
    """Print the error and end the process with exit code 3, without Python's clean-up."""
    # This must not import the module, because another thread may be in the middle of an import.
    clearing = getattr(sys.modules.get("data_pipeline.common.progress"), "clearing", str)
    with suppress(OSError):
        os.write(2, f"{clearing() if os.isatty(2) else ''}error: {message}\n".encode())
    os._exit(InterruptedRunError.exit_code)


def end_soon(code: int) -> NoReturn:
    """Run the exit functions and end the process, after `CLEAN_UP` seconds at the latest.

    Python itself would wait for threads that still read, and clear all modules, which takes seconds on a busy machine.
    """
    threading.Thread(target=_end_after, args=(code,), name="interruption", daemon=True).start()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _end_after(code: int) -> None:
    time.sleep(CLEAN_UP)
    os._exit(code)


def _is_installed() -> bool:
    return _handle in (signal.getsignal(number) for number in SIGNALS)


def _handle(number: int, frame: FrameType | None) -> None:
    """Handle a signal; Python calls this in the main thread, between two of its instructions."""
    state, now = _state, time.monotonic()
    state.answered.set()
    if state.at_once:
        end_now()
    if state.overdue:
        state.overdue = False
        raise KeyboardInterrupt
    again, state.last = now - state.last >= ONE_SIGNAL, now
    if state.forward is not None:
        if again:
            state.count += 1
            state.forward(number)
        return
    first_of_kind = number not in state.kinds
    state.kinds.add(number)
    if not again:
        return
    state.count += 1
    deferral = state.deferral
    # Slurm sends SIGUSR1 some minutes before SIGTERM, so a first signal of another kind is not more urgent.
    if deferral is None or not deferral.worth_waiting or not first_of_kind:
        raise KeyboardInterrupt


def _start_watching() -> None:
    """Start the thread that ends the process if the main thread does not handle a signal."""
    if _watch:
        signal.set_wakeup_fd(_watch[1].fileno(), warn_on_full_buffer=False)
        return
    _watch.extend(socket.socketpair())
    for end in _watch:
        end.setblocking(end is _watch[0])
    signal.set_wakeup_fd(_watch[1].fileno(), warn_on_full_buffer=False)
    # The new thread inherits this mask: a signal that it received would not wake the main thread from a system call.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=_watch_signals, args=(_watch[0],), name="interruption", daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.register_at_fork(after_in_child=_forget_watching)


def _forget_watching() -> None:
    """Close the connection in a forked process, so that its signals are not sent to the parent's thread."""
    if _watch:
        signal.set_wakeup_fd(-1)
        for end in _watch:
            end.close()
        _watch.clear()


def _watch_signals(reader: socket.socket) -> None:
    arrived, counts, state = -ONE_SIGNAL, dict.fromkeys(SIGNALS, 0), _state
    while numbers := reader.recv(1):
        number, now = numbers[0], time.monotonic()
        if state is not _state:
            counts, state = dict.fromkeys(SIGNALS, 0), _state
        elif now - arrived < ONE_SIGNAL:
            continue
        arrived = now
        if number in counts:
            counts[signal.Signals(number)] += 1
            last = counts[signal.Signals(number)] == INSISTING
            threading.Thread(target=_enforce, args=(number, state, last), name="interruption", daemon=True).start()


def _enforce(number: int, state: _State, last: bool) -> None:
    """End the command if it has not ended in time after a signal, or if a step does not end after Ctrl-C.

    `last` marks the third signal of its kind, which ends the process at once.
    """
    deferral = state.deferral

    def end() -> None:
        if state.of_command and _is_ours(number, state):
            end_now()

    if last and state.forward is None:
        end()
    if deferral is None:
        time.sleep(AT_MOST)
        if state.forward is None and state.deferral is None:
            end()
    elif not deferral.worth_waiting:
        if not state.answered.wait(PATIENCE):
            end()
    elif number == signal.SIGINT:
        time.sleep(PATIENCE + (2 * deferral.seconds if math.isfinite(deferral.seconds) else 0))
        if state.deferral is deferral and deferral.worth_waiting and _is_ours(number, state):
            state.overdue = True
            state.answered.clear()
            _thread.interrupt_main()
            if not state.answered.wait(PATIENCE):
                end()


def _is_ours(number: int, state: _State) -> bool:
    return state is _state and signal.getsignal(number) is _handle
