"""Group files by the starts of their forecasts: the files of one cycle of a weather centre belong together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def group_by_start(starts: Sequence[np.ndarray]) -> list[list[int]]:
    """Return groups of files that share starts, directly or through other files of the group.

    `starts` has one array per file. Groups keep the order of the files. A file without starts is its own group.

    >>> group_by_start([np.array([0]), np.array([6]), np.array([0, 12]), np.array([], int)])
    [[0, 2], [1], [3]]
    """
    group_of: dict[int, int] = {}
    groups: dict[int, list[int]] = {}
    for file, own in enumerate(starts):
        together = [file]
        for known in {group_of[start] for start in own.tolist() if start in group_of}:
            together += groups.pop(known)
        groups[file] = together
        for member in together:
            group_of.update(dict.fromkeys(starts[member].tolist(), file))
    return sorted(sorted(files) for files in groups.values())
