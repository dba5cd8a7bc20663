from datetime import UTC, datetime
from pathlib import Path

import eccodes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib import Encoder, headers
from data_pipeline.formats.grib import table as module
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.table import Table
from data_pipeline.grid import Grid
from data_pipeline.task import Variable

GRID = Grid.regular(3, 4)


def rows(table):
    """The rows of a table, under the names of ecCodes' keys."""
    for record in table.records:
        kind = table.kinds[record["kind"]]
        start = datetime.fromtimestamp(int(record["init"]), UTC)
        yield {
            "shortName": kind.short_name,
            "name": kind.long_name,
            "units": kind.units,
            "dataType": kind.data_type,
            "typeOfLevel": kind.type_of_level,
            "level": kind.level,
            "gridType": kind.layout.grid_type,
            "dataDate": int(f"{start:%Y%m%d}"),
            "dataTime": int(f"{start:%H%M}"),
            "minutes": int(record["step"]),
            "interval": int(record["interval"]),
            "process": kind.process,
            "product": kind.product,
            "number": int(record["number"]),
            "totalLength": int(record["length"]),
        }


PROCESSES = {"instant": "instant", "avg": "mean", "accum": "accumulation", "max": "maximum", "min": "minimum"}
PRODUCTS = {9: "probability", 10: "quantile", 12: "ensemble mean"}
"""The templates in the samples; this ensemble mean has the number 0 of derived forecasts."""


def plain_processing(handle):
    """Interval in minutes and processing over time, from the keys stepRange and stepType."""
    if eccodes.codes_is_defined(handle, "dataType") and eccodes.codes_get(handle, "dataType")[1:] == "cmean":
        return -1, "mean"  # a month, which GRIB1 does not state
    start, _, end = eccodes.codes_get_string(handle, "stepRange").partition("-")
    process = PROCESSES[eccodes.codes_get(handle, "stepType")]
    if process == "instant" and eccodes.codes_get(handle, "shortName") == "tp":
        # ECMWF accumulates since the start of the forecast; other centres do not say.
        since_start = eccodes.codes_get(handle, "centre") == "ecmf"
        return 60 * int(start) if since_start else -1, "accumulation"
    return 60 * (int(end) - int(start)) if end else 0, process


def plain_rows(plain, path):
    for handle in plain.handles(path):
        row = {
            key: plain.get(handle, key, str, "")
            for key in ("shortName", "name", "units", "dataType", "typeOfLevel", "gridType")
        }
        for key in ("dataDate", "dataTime", "totalLength"):
            row[key] = eccodes.codes_get_long(handle, key)
        for key in ("level", "number"):
            row[key] = plain.get(handle, key, int, 0)
        row["interval"], row["process"] = plain_processing(handle)
        template = eccodes.codes_get(handle, "productDefinitionTemplateNumber")
        row["product"] = "climate mean" if row["dataType"] == "hcmean" else PRODUCTS.get(template, "")
        end = eccodes.codes_get_string(handle, "endStep")  # in hours, or in minutes if the hours are not whole
        row["minutes"] = int(end[:-1]) if end.endswith("m") else 60 * int(end)
        yield row


def test_every_real_message_has_the_keys_of_ecCodes(real_files, plain):
    for path in real_files:
        assert list(rows(Table.of(path))) == list(plain_rows(plain, path)), path.name


ORDINARY = st.fixed_dictionaries(
    {
        "shortName": st.sampled_from(["2t", "z", "tp"]),
        "dataDate": st.sampled_from([19000101, 19991231, 20000101, 20001231, 20010101, 20180104, 20991231]),
        "dataTime": st.sampled_from([0, 600, 1230]),
        "endStep": st.sampled_from([0, 24, 240, 255, 256, 1104]),
        "perturbationNumber": st.integers(0, 254),
    }
)


@settings(max_examples=40)
@given(st.sampled_from([1, 26, 30, 36, 15, None]), st.lists(ORDINARY, min_size=1, max_size=4))
def test_generated_messages_have_the_keys_of_ecCodes(plain, tmp_path_factory, definition, messages):
    """In one file, so that several messages share a kind; None is another centre than ECMWF."""
    local = {"setLocalDefinition": 1, "localDefinitionNumber": definition} if definition else {"centre": "kwbc"}
    encoder = Encoder(GRID, **local)
    path = tmp_path_factory.mktemp("made") / "file"
    with path.open("wb") as file:
        for keys in messages:
            number = {} if definition else {"deleteLocalDefinition": 1}
            keys = {name: value for name, value in keys.items() if definition or name != "perturbationNumber"}
            file.write(encoder.encode(np.zeros(GRID.shape), typeOfLevel="surface", **number, **keys))
    assert list(rows(Table.of(path))) == list(plain_rows(plain, path))


@settings(max_examples=60)
@given(
    st.sampled_from([0, 1, 2, 10, 11, 12]),
    st.sampled_from([0, 1, 2, 4, 13]),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_unusual_times_are_read_by_ecCodes(plain, tmp_path_factory, unit, indicator, p1, p2, offset):
    """Octets 18 to 21 of GRIB1 section 1: unit, P1, P2, time range indicator."""
    if indicator in (2, 4) and p2 < p1:
        p1, p2 = p2, p1
    encoder = Encoder(GRID, setLocalDefinition=1, localDefinitionNumber=26, typeOfLevel="surface", level=0)
    path = tmp_path_factory.mktemp("unusual") / "file"
    with path.open("wb") as file:
        for octets in ((unit, p1, p2, indicator), (unit, offset, p2 + offset, indicator), (1, p1, 0, 0)):
            message = bytearray(encoder.encode(np.zeros(GRID.shape)))
            message[25:29] = octets
            file.write(message)
    try:
        expected = list(plain_rows(plain, path))
    except (eccodes.CodesInternalError, ValueError):
        return  # ecCodes cannot read these times
    found = list(rows(Table.of(path)))
    whole = [row["minutes"] < 0 or row == other for row, other in zip(found, expected, strict=True)]
    assert all(whole)
    assert found[2] == expected[2]


def test_ecCodes_reads_one_message_of_each_kind(writer, tmp_path, monkeypatch):
    path = writer.forecast(tmp_path / "file", ["z@500", "z@850", "2t"], years=range(1998, 2003))
    asked, original = [], eccodes.codes_new_from_message
    monkeypatch.setattr(module.eccodes, "codes_new_from_message", lambda m: asked.append(1) or original(m))
    table = Table.of(path)
    assert len(table.records) == 3 * 5 * 3 * 3
    assert len(asked) == len(table.kinds) == 3


def test_octets_that_differ_from_ecCodes_are_not_used(writer, plain, tmp_path, monkeypatch):
    """If octet 50 does not hold the number, ecCodes reads it."""
    monkeypatch.setattr(headers, "NUMBER_AT_50", (15,))  # which holds the number in octet 51, the system in octet 50
    encoder = Encoder(GRID, setLocalDefinition=1, localDefinitionNumber=15, typeOfLevel="surface", level=0)
    numbers = [3, 1, 2, 3]
    path = tmp_path / "file"
    path.write_bytes(b"".join(encoder.encode(np.zeros(GRID.shape), perturbationNumber=k) for k in numbers))
    assert [row["number"] for row in rows(Table.of(path))] == numbers


def test_the_variable_of_a_kind():
    def variable(name="t", level_type="isobaricInhPa", level=500.0, process="instant", product=""):
        layout = Layout("regular_ll")
        return Kind(name, 130, "", "", process, product, level_type, level, "pf", "0001", layout).variable

    assert variable() == Variable("t", 500)
    assert variable("2t", "heightAboveGround", 2) == Variable("2t")
    assert variable("z", "surface", 0) == Variable("z")
    assert variable("t", "isobaricInPa", 5000) == Variable("t", 50)
    assert variable("t", "isobaricInPa", 50) is None
    assert variable("t", "isobaricInPa", 10050) is None
    assert variable("no-name") is None
    assert variable(process="mean") == Variable("t", 500, process="mean")
    assert variable("tp", "surface", process="accumulation") == Variable("tp")
    assert variable(product="ensemble mean") is None
    assert variable(process="time processing rms") is None


def test_an_impossible_date_is_refused(writer, tmp_path):
    path = writer.forecast(tmp_path / "file")
    content = bytearray(path.read_bytes())
    content[21] = 13  # the month
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"file holds a message with the impossible date 1998-13-4 0:0"):
        Table.of(path)


@pytest.mark.parametrize(("content", "sentence"), [(b"", "empty is empty"), (b"\0" * 1000, "empty is not GRIB")])
def test_a_file_without_messages_is_refused(tmp_path, content, sentence):
    (tmp_path / "empty").write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        Table.of(tmp_path / "empty")


def test_a_message_that_ecCodes_cannot_read_is_refused(tmp_path):
    message = bytearray(Encoder(GRID, edition=2).encode(np.zeros(GRID.shape)))
    message[16:20] = (10**6).to_bytes(4, "big")  # section 1 longer than the message
    (tmp_path / "bad").write_bytes(message)
    with pytest.raises(InputError, match=r"bad: ecCodes cannot read the message at byte 0"):
        Table.of(tmp_path / "bad")


def test_a_folder_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="Is a directory"):
        Table.of(tmp_path)
