"""Every benchmark starts as a module; no test checks a measurement."""

import forks
from conftest import ROOT

NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in ("common", "__init__"))
HELP = """
import runpy, sys
for name in sys.argv[1:]:
    sys.argv[1:] = ["--help"]
    try:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, name
    else:
        raise AssertionError(f"{name} has no --help")
"""


def test_every_benchmark_runs_as_a_module(tmp_path):
    """As `python -m benchmarks.NAME --help` does, but all in one process, which has imported PyTorch."""
    (tmp_path / "help.py").write_text(HELP)
    process = forks.run([tmp_path / "help.py", *NAMES], cwd=ROOT)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("usage:") == len(NAMES)
