"""Messages that are left out because they are no forecasts, members or analyses: count and name them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from data_pipeline.formats.grib.kind import Kind

MAX_NAMED = 4
"""Most kinds of message that are named; the others are only counted."""


def describe_left_out(counts: Mapping[Kind, int]) -> str:
    """Return a text with the number of messages for each `Kind.left_out`, the most frequent first; empty for none."""
    sums = Counter[str]()
    for kind, count in counts.items():
        sums[kind.left_out] += count
    shown = [f"{count:,} x {text}" for text, count in sums.most_common(MAX_NAMED)]
    return ", ".join(shown) + (f" and {len(sums) - MAX_NAMED} others" if len(sums) > MAX_NAMED else "")
