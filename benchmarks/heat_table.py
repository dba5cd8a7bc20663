"""Print the test checks of all runs of `scripts/heat` as the Markdown table of docs/heat.md.

python -m benchmarks.heat_table runs/heat
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np


def heat_table(folder: Path) -> str:
    """Return the test checks of all runs in a folder as a Markdown table."""
    lines = [
        "| run | parameters | epochs, best | within 1 % | scaled | by region | squared error | gate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for file in sorted(folder.glob("*/test_check.json")):
        check = json.loads(file.read_text())
        losses = np.loadtxt(file.with_name("metrics.csv"), delimiter=",", skiprows=1, ndmin=2)[:, 3]
        regions = " / ".join(f"{share:.2f}" for share in check["regions"])
        gate = f"{check['gate']:.2f} %" if "gate" in check else ""
        lines.append(
            f"| {file.parent.name} | {check['parameters']:,} | {len(losses)}, {np.nanargmin(losses) + 1} "
            f"| {check['within']:.3f} % | {check['scaled']:.3f} % | {regions} | {check['squared_error']:.1e} | {gate} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    print(heat_table(parser.parse_args().folder))
