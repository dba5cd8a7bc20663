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
for _ in range(10):
    several = [np.ones(count) for _ in range(6)]
    del several
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc's malloc has these parameters")
@pytest.mark.parametrize(
    ("count", "options"),
    [(2_000_000, []), (2_000_000, [1 << 25]), (12_000_000, [])],
    ids=["16 MB", "16 MB of at most 32", "96 MB"],
)
def test_the_next_arrays_of_the_same_size_cost_no_new_pages(count, options):
    """Counted by the operating system; six arrays are freed together, as those of a network are."""
    given_back, kept = (
        int(subprocess.run([sys.executable, "-c", FAULTS, *map(str, words)], capture_output=True, check=True).stdout)
        for words in (["give", count], ["keep", count, *options])
    )
    assert kept < 20 < given_back
