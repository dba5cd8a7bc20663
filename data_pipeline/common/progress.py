"""How far a long run is: a line for each step in a log, one line that moves on a terminal."""

from __future__ import annotations

import sys
import time

from data_pipeline.common.wording import duration


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
