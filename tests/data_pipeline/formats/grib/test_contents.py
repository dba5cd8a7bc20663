"""The summary of the contents of GRIB files, and the groups of files with common starts."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.formats.grib.audit import Census
from data_pipeline.formats.grib.grib_contents import summarize_files
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.table import RECORD, Stamp, Table


def read(paths):
    """The lines by their names; of several lines with one name, the last."""
    return {line[:12].strip(): line[13:] for line in summarize_files(paths).splitlines()}


def lines_named(name, paths):
    """The lines with this name."""
    return [line[13:] for line in summarize_files(paths).splitlines() if line.startswith(name)]


def test_a_complete_archive(writer, tmp_path):
    for year in (1998, 1999):
        writer.forecast(tmp_path / f"output.pl.{year}", ("z@500", "t@500", "z@850", "t@850"), (year,))
        writer.forecast(tmp_path / f"output.sfc.{year}", ("2t", "10u"), (year,))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert read(tmp_path / "output.*") == {
        "files": f"4, {size / 1000:.1f} kB",
        "messages": "108, 17.3 kB when decoded",  # of 40 points and 4 bytes each
        "variables": "2t 10u; z t at 850 500 hPa",
        "starts": "2, 1998-01-04T00:00 to 1999-01-04T00:00 UTC",
        "lead times": "0 24 48 h",
        "members": "1 2 3",
        "grid": "5 x 8 points, latitudes 90 to -90, longitudes 0 to 315",
        "missing": "no field",
        "repeated": "none",
    }


def test_incomplete_files_are_named_with_their_missing_messages(writer, tmp_path):
    """As in the real archive: one level of one member is missing for all variables and lead times."""
    names, years = ("z@500", "t@500", "z@850", "t@850"), (1998, 1999)
    without = [(name, 1999, lead, 2) for name in ("z@500", "t@500") for lead in (0, 24, 48)]
    for year in years:
        writer.forecast(tmp_path / f"output.pl.{year}", names, (year,), without=without)
        writer.forecast(tmp_path / f"output.sfc.{year}", ("2t",), (year,), without=[("2t", 1998, 24, 3)])
    assert read(tmp_path / "output.*")["missing"] == "7 of 90"
    assert lines_named("lacks", tmp_path / "output.*") == [
        f"{tmp_path}/output.pl.1999: 6 of z@500 t@500 at starts 1999-01-04T00:00, lead times 0 24 48 h, members 2",
        f"{tmp_path}/output.sfc.1998: 1 of 2t at starts 1998-01-04T00:00, lead times 24 h, members 3",
    ]


def test_repeated_fields_are_named_with_the_keys_that_differ_and_damaged_files_are_listed(writer, tmp_path):
    writer.forecast(tmp_path / "one", years=(1998,), leads=(24,))
    writer.forecast(tmp_path / "two", years=(1998,), leads=(24,), numbers=(2,), expver="0002")
    writer.forecast(tmp_path / "three", years=(1998,), leads=(24,), numbers=(3,))
    (tmp_path / "zut").write_bytes((tmp_path / "one").read_bytes()[:-1])
    found = read(tmp_path / "*")
    assert found["damaged"].startswith(f"{tmp_path}/zut is cut off: the message at byte ")
    assert found["files"].startswith("3, ")
    assert found["repeated"] == "2"
    assert found["versions"] == "expver 0001 4, expver 0002 1"
    length = (tmp_path / "three").stat().st_size
    assert sorted(lines_named("repeats", tmp_path / "*")) == [
        f"2t in {tmp_path}/one (byte {length}) and {tmp_path}/two (byte 0), which differ in expver 0001 and 0002",
        f"2t in {tmp_path}/one (byte {2 * length}) and {tmp_path}/three (byte 0), which are the same",
    ]


KIND = Kind(
    "2t", 167, "2 metre temperature", "K", "instant", "", "surface", 0, "pf", "0001", Layout("regular_ll", 5, 8)
)


def table(file, starts):
    records = np.zeros(len(starts), RECORD)
    records["init"] = sorted(starts)
    return Table(Path(str(file)), Stamp(1, 0), records, (KIND,))


@given(st.lists(st.sets(st.integers(0, 15), min_size=1, max_size=3), min_size=1, max_size=12))
def test_groups_are_the_connected_files(files):
    """Compared with repeated merging until nothing changes."""
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
