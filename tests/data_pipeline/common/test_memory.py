"""Freed memory is kept for the next arrays."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from data_pipeline.common.memory import keep_freed_memory
if sys.argv[1:]:
    keep_freed_memory()
for _ in range(2):
    several = [np.ones(2_000_000) for _ in range(6)]
    del several
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    several = [np.ones(2_000_000) for _ in range(6)]
    del several
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc's malloc has these parameters")
def test_the_next_arrays_of_the_same_size_cost_no_new_pages():
    """Counted by the operating system; six arrays of 16 MB are freed together, as those of a network are."""
    given_back, kept = (
        int(subprocess.run([sys.executable, "-c", FAULTS, *words], capture_output=True, check=True).stdout)
        for words in ([], ["keep"])
    )
    assert kept < 20 < given_back
