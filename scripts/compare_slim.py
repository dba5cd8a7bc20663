"""Check a slim installation, in which this runs: packages, size, and that two corrected files differ by a step at most.

    python scripts/compare_slim.py TORCH.grib SLIM.grib

A step is the packing step of the member with the widest range: `correct` rounds all members of a field to its lattice.
Raises SystemExit with a sentence for a file or an installation that fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import distributions

import eccodes
import numpy as np

MOST_PACKAGES, MOST_MEGABYTES = 25, 250
NOT_OURS = ("pip", "setuptools", "wheel")
"""Packages of the environment that this project does not require."""


FIELD = ("shortName", "level", "stepRange", "dataDate", "dataTime")


def messages(path: str) -> Iterator[tuple[tuple[str, ...], np.ndarray, float]]:
    """Yield the field, values and packing step of all messages."""
    with open(path, "rb") as file:  # noqa: PTH123 (ecCodes takes an open file)
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            binary, decimal = (eccodes.codes_get(handle, key) for key in ("binaryScaleFactor", "decimalScaleFactor"))
            field = tuple(eccodes.codes_get_string(handle, key) for key in FIELD)
            yield field, eccodes.codes_get_values(handle), 2.0**binary / 10.0**decimal
            eccodes.codes_release(handle)


def main() -> None:
    """Compare the files, then count packages and bytes."""
    one, two = (list(messages(path)) for path in sys.argv[1:3])
    if len(one) != len(two) or not one:
        raise SystemExit(f"error: PyTorch wrote {len(one)} messages, the slim installation {len(two)}")
    widest: dict[tuple[str, ...], float] = {}
    for field, _, step in one:
        widest[field] = max(step, widest.get(field, 0))
    steps = [float(np.abs(a - b).max() / widest[field]) for (field, a, _), (_, b, _) in zip(one, two, strict=True)]
    if max(steps) > 1.001:
        raise SystemExit(f"error: the slim installation differs from PyTorch by {max(steps):.2f} steps of the packing")
    found = [each for each in distributions() if each.name.lower() not in NOT_OURS]
    files = [each.locate_file(file) for each in found for file in each.files or []]
    size = sum(file.stat().st_size for file in files if file.is_file()) / 1e6  # type: ignore[attr-defined]
    print(
        f"slim: {len(found)} packages, {size:.0f} MB; {len(one)} messages, at most {max(steps):.3f} steps from PyTorch"
    )
    if len(found) > MOST_PACKAGES or size > MOST_MEGABYTES:
        raise SystemExit(f"error: a slim installation has at most {MOST_PACKAGES} packages and {MOST_MEGABYTES} MB")


if __name__ == "__main__":
    main()
