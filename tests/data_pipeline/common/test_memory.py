"""Freed memory is kept for the next arrays."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from data_pipeline.common.machine_memory import keep_freed_memory
count, *options = map(int, sys.argv[2:])
if sys.argv[1] == "keep":
    keep_freed_memory(*options)
for _ in range(2):
    several = [np.ones(count) for _ in range(6)]
    del several
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    several = [np.ones(count) for _ in range(6)]
    del several
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc's malloc has these parameters")
def test_the_next_arrays_of_the_same_size_cost_no_new_pages():
    """Counted by the operating system; six arrays are freed together, as those of a network are.

    16 MB, 16 MB of at most 32, and 40 MB, which is more than glibc keeps by itself.
    """
    given_back, *kept = (
        int(subprocess.run([sys.executable, "-c", FAULTS, *words.split()], capture_output=True, check=True).stdout)
        for words in ("give 5000000", "keep 2000000", f"keep 2000000 {1 << 25}", "keep 5000000")
    )
    assert max(kept) < 20 < given_back
