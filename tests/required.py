"""What a test needs of its machine: where that is missing the test is skipped, and in CI it fails."""

import os

import pytest

STRICT = "DEEPWEATHER_NO_SKIP"
"""`.ci/run` sets this variable, so that CI cannot pass without the tests of jobs and of several nodes."""


def skip(reason):
    """Skip the test for this reason; fail where no test of this kind may be skipped."""
    if os.environ.get(STRICT):
        pytest.fail(f"{reason} ({STRICT} is set)")
    pytest.skip(reason)
