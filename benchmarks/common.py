"""What every benchmark shares: its command line and the report at its end."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping


def command_line(purpose: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option `--json`; `purpose` is the docstring of the benchmark."""
    made = argparse.ArgumentParser(description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="print the ratios as a last line of JSON too")
    return made


def machine() -> str:
    """Describe this machine in a line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{platform.machine()}, {cores} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def report(name: str, ratios: Mapping[str, float], as_json: bool) -> None:
    """Print the ratios, as a last line of JSON if asked."""
    for ratio, value in ratios.items():
        print(f"{ratio:<24} {value:8.2f}")
    if as_json:
        print(json.dumps({"benchmark": name, "ratios": dict(ratios), "machine": machine()}))
