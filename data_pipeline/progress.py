"""How far a long run is: a line for each step in a log, one line that moves on a terminal."""

from __future__ import annotations

import sys
import time


class Progress:
    """Says after each of `total` steps how far the work called `name` is, how long it took, how long it will take."""

    def __init__(self, name: str, total: int, done: int = 0) -> None:
        self.name, self.total, self.done = name, total, done
        self._earlier = done
        self._began = time.monotonic()
        self._moves = sys.stdout.isatty()

    def step(self, what: object) -> None:
        """Count one step, `what`, as done."""
        self.reach(self.done + 1, f" ({what})")

    def reach(self, done: int, what: str = "") -> None:
        """Say that so many steps are done now."""
        self.done = done
        if done == self._earlier:
            return
        elapsed = time.monotonic() - self._began
        left = elapsed * (self.total - done) / (done - self._earlier)
        line = f"{self.name} {done} of {self.total}{what} after {duration(elapsed)}, about {duration(left)} to go"
        if not self._moves:
            print(line, flush=True)
            return
        # Back to the line's start, and clear what a longer line before it has left there.
        print(f"\r\033[K{line}", end="\n" if done == self.total else "", flush=True)


def duration(seconds: float) -> str:
    """Return a length of time as minutes and seconds, with hours where there are any.

    >>> duration(75), duration(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(count: float) -> str:
    """Return a number of bytes in the unit that suits it.

    >>> size(2_880_000_000_000)
    '2.88 TB'
    """
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if count < 1000:
            break
        count, unit = count / 1000, larger
    return f"{count:.3g} {unit}"
