"""Progress of a command: one line with the name of the work, how much of it is done, and the time that remains.

    with Progress("store: forecast", len(forecasts)) as progress:
        for forecast in forecasts:
            write(forecast)
            progress.step()

prints `store: forecast 12 of 640 after 0:03, about 2:37 to go`. Wrap everything that can last longer than five seconds.
A thread prints the line of the innermost `Progress`, even if one step takes long. On a terminal it overwrites the line;
in a log it prints a new line every seven seconds. Short work prints nothing.

Lines appear only while a command shows them (`show_progress`), and only on the first rank: a library that a notebook
uses, a worker process and a Dask worker are silent. DEEPWEATHER_PROGRESS=off hides them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TextIO, TypeVar

from data_pipeline.common.messages import format_duration, publish

_Item = TypeVar("_Item")

FIRST = 2.5
"""Seconds after which work prints its first line in a log. Users see it within 5 s, even on a busy machine."""
EVERY = 7.0
"""Seconds between two lines in a log. Users see a line at least every 10 s."""
FIRST_IN_PLACE, EVERY_IN_PLACE = 1.0, 0.5
"""The same times on a terminal, where a line overwrites the previous line."""
_CLEAR = "\r\033[K"


class Progress:
    """Work in `total` steps, `done` of which an earlier run has done; without `total`, only the elapsed time is known.

    Use it in a `with` statement. The remaining time is estimated from all finished steps except the first, in which
    loops are compiled and caches are filled.
    """

    def __init__(self, name: str, total: float | None = None, done: float = 0) -> None:
        self.name, self.total, self.done = name, total, done
        self.label = ""
        self.printed = False
        """Whether a line of this work was printed."""
        self.began = time.monotonic()
        self._before = done
        self._first: tuple[float, float] | None = None
        self._latest = self.began, done

    def step(self, label: object = "") -> None:
        """Count one more step as done; `label` names this step."""
        self.reach(self.done + 1, label)

    def reach(self, done: float, label: object = "") -> None:
        """Set the number of steps done; `label` names the last of them."""
        self.label = str(label)
        if done == self.done:
            return
        self.done, self._latest = done, (time.monotonic(), done)
        self._first = self._first or self._latest
        publish("progress", self)

    def resume(self, done: float) -> None:
        """Set the number of steps that an earlier run has done, if it becomes known only after the start."""
        self.done = self._before = done
        self._first, self._latest = None, (time.monotonic(), done)

    def remaining(self) -> float | None:
        """Return the estimated seconds to go; None before the first step, and without a total."""
        if self.total is None or self._first is None:
            return None
        now, (latest, done) = time.monotonic(), self._latest
        began, before = self._first if done > self._first[1] else (self.began, self._before)
        if done <= before:
            return None
        of_one = (latest - began) / (done - before)
        # The estimate for the current step counts down to zero; later steps count in full.
        left = max(self.total - done, 0)
        return max(of_one * left - (now - latest), of_one * max(left - 1, 0))

    def elapsed(self) -> float:
        """Return the seconds since the start of the work."""
        return time.monotonic() - self.began

    def text(self) -> str:
        """Return the progress line."""
        elapsed = format_duration(self.elapsed())
        label = f" ({self.label})" if self.label else ""
        if self.total is None:
            count = f" {self.done:,.0f}" if self.done else ""
            return f"{self.name}{count}{label}, {elapsed} so far"
        remaining = self.remaining()
        left = "" if remaining is None or self.done >= self.total else f", about {format_duration(remaining)} to go"
        return f"{self.name} {self.done:,.0f} of {self.total:,.0f}{label} after {elapsed}{left}"

    def __str__(self) -> str:
        return self.text()

    def __enter__(self) -> Progress:
        self.began = time.monotonic()
        self._latest = self.began, self._before
        _screen.push(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _screen.pop(self, finished=kind is None)


def watched(items: Iterable[_Item], name: str, total: int | None = None) -> Iterator[_Item]:
    """Yield `items` and show how many are done; `total` is their number if they have no length."""
    with Progress(name, len(items) if total is None and isinstance(items, Sized) else total) as progress:
        for item in items:
            yield item
            progress.step()


@contextmanager
def show_progress(name: str, words: Sequence[str] = ()) -> Iterator[None]:
    """Show the progress of the command `name` in the block; inside another such block, change nothing.

    `words` are the command's arguments. With a flag such as `--help` or `--dry-run`, the command prints a text that may
    go to a file, so no progress is shown.
    """
    if _screen.is_shown or any(word.startswith("-") and word not in ("-m", "--multirun") for word in words):
        yield
        return
    with _screen.shown(), Progress(f"{name}: working"):
        yield


def hide_progress() -> None:
    """Stop showing progress in this process; another process of the command shows it from now on."""
    _screen.stop()
    _screen.hidden = True


def clearing() -> str:
    """Return the characters that remove the progress line, if the last line of the terminal may be one."""
    return _CLEAR if _screen.drawn or (_screen.hidden and _screen.in_place) else ""


class _Screen:
    """Prints the line of the innermost `Progress` of this process, in a separate thread."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset the state; a forked process has neither the thread nor the owner of the lock."""
        self.lock = threading.RLock()
        self.is_shown, self.hidden = False, False
        self._changed = threading.Condition(self.lock)
        self._stack: list[Progress] = []
        self._thread: threading.Thread | None = None
        self._stream: TextIO = sys.stdout
        self._last = 0.0
        self._wake = 0.0
        """The time until which the thread waits."""
        self.in_place = False
        self.drawn = False
        """Whether the last line of the terminal is a progress line."""
        self._line_open = False
        """Whether the last line of the terminal is another text without a line end."""

    def push(self, progress: Progress) -> None:
        """Show this work from now on."""
        with self.lock:
            self._stack.append(progress)
            # Waking the thread takes a tenth of a millisecond, as long as the work on a forecast of a station.
            if self._due() < self._wake:
                self._changed.notify_all()

    def pop(self, progress: Progress, finished: bool) -> None:
        """Stop showing this work; print a last line if it took long."""
        with self.lock:
            if progress in self._stack:
                self._stack.remove(progress)
            if self._thread and finished and progress.printed and progress.total and progress.elapsed() >= EVERY:
                self.clear()
                self._print(f"{progress.text()}\n")
                self._last = time.monotonic()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Print lines while the block runs; print none on other ranks than the first, or if the user hides them."""
        streams = sys.stdout, sys.stderr
        self.is_shown, self._stream = True, streams[0]
        try:
            # Before PyTorch's variables are set, Slurm's task number tells which process is the first rank.
            rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
            if rank == "0" and os.environ.get("DEEPWEATHER_PROGRESS", "on") != "off":
                # `dumb` terminals, such as an editor's, have no sequence that clears a line.
                self.in_place = streams[0].isatty() and os.environ.get("TERM", "dumb") != "dumb"
                if self.in_place:
                    sys.stdout, sys.stderr = (_Cleared(each) if each.isatty() else each for each in streams)
                self._last = time.monotonic() - (0 if self.in_place else EVERY - FIRST)
                self._start()
            yield
        finally:
            self.stop()
            self.is_shown = self.hidden = False
            if isinstance(sys.stdout, _Cleared):
                sys.stdout = streams[0]
            if isinstance(sys.stderr, _Cleared):
                sys.stderr = streams[1]

    def stop(self) -> None:
        """End the thread and remove its line from the terminal."""
        with self.lock:
            thread, self._thread = self._thread, None
            self._changed.notify_all()
            self.clear()
        if thread:
            thread.join(2)

    def write(self, stream: TextIO, text: str) -> int:
        """Write text of the command to the terminal, in place of the progress line."""
        with self.lock:
            self.clear()
            self._line_open = not text.endswith("\n") if text else self._line_open
            return stream.write(text)

    def clear(self) -> None:
        """Remove the progress line from the terminal."""
        if self.drawn:
            self.drawn = False
            self._print(_CLEAR)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        # Signals are blocked in this thread: one that it received would not wake the main thread from a system call.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> None:
        own = threading.current_thread()
        with self.lock:
            while self._thread is own:
                self._wake = self._due()
                wait = self._wake - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                else:
                    self._last = time.monotonic()
                    self._show(self._stack[-1])

    def _due(self) -> float:
        """Return the time of the next line."""
        if not self._stack:
            return time.monotonic() + EVERY
        work = self._stack[-1]
        if self.in_place:
            first = min(work.began + FIRST_IN_PLACE, self._last + FIRST)
            return max(self._last + EVERY_IN_PLACE, self._last if self.drawn else first)
        # Work that began after the last line gets its first line sooner.
        return self._last + EVERY if work.printed else min(self._last + EVERY, max(work.began, self._last) + FIRST)

    def _show(self, work: Progress) -> None:
        work.printed = True
        if not self.in_place:
            self._print(f"{self._line()}\n")
        elif not self._line_open:
            text, columns = self._line(), shutil.get_terminal_size().columns
            self._print(f"{_CLEAR}{text if len(text) < columns else text[: max(columns - 4, 0)] + '...'}")
            self.drawn = True

    def _line(self) -> str:
        """Return the line of the innermost work, and of the nearest outer work whose remaining time is known."""
        *around, work = self._stack
        known = [one for one in around if one.remaining() is not None]
        return "; ".join(one.text() for one in (work, *known[-1:]))

    def _print(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the reader of a pipe has gone, or the stream is closed
            self._stream.write(text)
            self._stream.flush()


class _Cleared:
    """A stream to a terminal that removes the progress line before it writes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return _screen.write(self._stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_screen = _Screen()
# A daemon thread that prints while the interpreter ends would abort the process.
atexit.register(_screen.stop)
os.register_at_fork(
    before=lambda: _screen.lock.acquire(),  # a fork in the middle of a line would copy a locked stream
    after_in_parent=lambda: _screen.lock.release(),
    after_in_child=_screen.reset,
)
