"""`killed_prepare.py CHANGE ARGUMENTS`: `deepweather prepare ARGUMENTS`, which writes a store of several files.

SIGKILL ends it just before it changes a file for the time CHANGE, counted from 0; never if CHANGE is negative.
"""

import os
import signal
import sys
from itertools import count

import deepweather

from data_pipeline.store import Store


def kill_before(change):
    """Let this process be killed just before it opens a file for writing, renames or removes one, for this time."""
    times = count()

    def hook(event, arguments):
        written = event == "open" and (arguments[2] or 0) & os.O_ACCMODE != os.O_RDONLY
        if (written or event in ("os.rename", "os.remove")) and next(times) == change:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    for method in (Store.plan, Store.write):
        method.__kwdefaults__["shard_bytes"] = 10_000
    change, *arguments = sys.argv[1:]
    kill_before(int(change))
    sys.argv = ["deepweather", "prepare", *arguments]
    deepweather.main()
