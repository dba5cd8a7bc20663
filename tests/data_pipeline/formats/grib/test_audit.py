"""Groups of files with common starts, compared with repeated merging until nothing changes."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.formats.grib.audit import Census
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.table import RECORD, Stamp, Table

KIND = Kind(
    "2t", 167, "2 metre temperature", "K", "instant", "", "surface", 0, "pf", "0001", Layout("regular_ll", 5, 8)
)


def table(file, starts):
    records = np.zeros(len(starts), RECORD)
    records["init"] = sorted(starts)
    return Table(Path(str(file)), Stamp(1, 0), records, (KIND,))


@given(st.lists(st.sets(st.integers(0, 15), min_size=1, max_size=3), min_size=1, max_size=12))
def test_groups_are_the_connected_files(files):
    census = Census()
    for file, starts in enumerate(files):
        census.add(table(file, starts))
    label = list(range(len(files)))
    while True:
        spread = [min(label[b] for b in range(len(files)) if files[a] & files[b]) for a in range(len(files))]
        if spread == label:
            break
        label = spread
    expected = [[str(k) for k in range(len(files)) if label[k] == group] for group in sorted(set(label))]
    assert [[str(path) for path in group] for group in census.groups()] == expected
    assert census.messages == sum(map(len, files))
    assert census.values("init").tolist() == sorted(set.union(*files))
