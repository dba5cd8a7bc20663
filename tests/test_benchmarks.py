"""Every benchmark starts both as a file and as a module; what they measure is not a test."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "common")
HELP = """
import runpy, sys
for name in sys.argv[2:]:
    sys.argv[1:] = ["--help"]
    try:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        assert not leaving.code, name
    else:
        raise AssertionError(f"{name} has no --help")
"""


def test_every_benchmark_runs_as_a_module():
    """As `python -m benchmarks.NAME` does, all in one process: PyTorch is imported once."""
    process = subprocess.run(
        [sys.executable, "-c", HELP, "-", *NAMES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("usage:") == len(NAMES)
