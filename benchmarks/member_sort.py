"""Processor seconds to order 51 members in 361 x 720 cells and to give them sorted values, by kind of raw members.

The peer is NumPy's stable `argsort` of the same floats, which leaves equal members in the order of their numbers.

python -m benchmarks.member_sort
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np

from benchmarks.common import HALF_DEGREE, best_times
from models.members.coupled_members import CellNames, couple, template_order
from models.parallel.domain import Domain


def main(members: int, repeats: int) -> None:
    """Print the times."""
    random = np.random.default_rng(0)
    normal = random.normal(280, 5, (members, 1, *HALF_DEGREE.shape))
    dry = random.random(normal.shape) < 0.5
    names = CellNames(0, 0, 24, Domain.of(HALF_DEGREE))
    values = np.sort(normal, axis=0)
    for kind, raw in (
        ("all different", normal),
        ("steps of 0.1", np.round(normal, 1)),
        ("half of them dry", np.where(dry, 0, np.abs(normal - 280))),
    ):
        order = template_order(raw, names)
        works = {
            "order": partial(template_order, raw, names), "values": partial(couple, values, order),
            "argsort": partial(raw.argsort, axis=0, kind="stable"),
        }  # fmt: skip
        own, given, plain = best_times(works, repeats, time.process_time).values()
        print(
            f"{kind}: order {own:.2f} s, values {given:.2f} s; argsort {plain:.2f} s, {plain / own:.1f} times as long"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=51)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    main(options.members, options.repeats)
