"""What tests of models share."""

from pathlib import Path

import pytest
from model_tiles import CASES, work_out


@pytest.fixture(scope="module")
def whole(tmp_path_factory, toy) -> Path:
    """A file of what every model gives on whole grids, for comparison with tiles."""
    return work_out(tmp_path_factory.mktemp("whole") / "tensors.pt", toy, CASES)
