"""The rows of a file's table against ecCodes: messages of both editions, real, made and with random octets."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice

import eccodes
import numpy as np
import pytest
from grib_parts import section
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib import headers
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.table import Table
from data_pipeline.grid import Grid
from data_pipeline.task import Variable
from data_pipeline.writing import Encoder

GRID = Grid.regular(3, 4)
ECMWF = {"setLocalDefinition": 1, "localDefinitionNumber": 26, "typeOfLevel": "surface"}
PROCESSES = {"instant": "instant", "avg": "mean", "accum": "accumulation", "max": "maximum", "min": "minimum"}
PRODUCTS = {9: "probability", 10: "quantile", 12: "ensemble mean"}
"""The templates in the samples; this ensemble mean has the number 0 of derived forecasts."""
SURE = ("shortName", "dataDate", "dataTime", "minutes", "number")
"""Keys that ecCodes has for most random headers."""


def rows(table):
    """The rows of a table, under the names of ecCodes' keys."""
    for record in table.records:
        kind = table.kinds[record["kind"]]
        start = datetime.fromtimestamp(int(record["init"]), UTC)
        yield {
            "shortName": kind.short_name, "name": kind.long_name, "units": kind.units, "dataType": kind.data_type,
            "typeOfLevel": kind.type_of_level, "level": kind.level, "gridType": kind.layout.grid_type,
            "dataDate": int(f"{start:%Y%m%d}"), "dataTime": int(f"{start:%H%M}"), "minutes": int(record["step"]),
            "interval": int(record["interval"]), "process": kind.process, "product": kind.product,
            "number": int(record["number"]), "totalLength": int(record["length"]),
        }  # fmt: skip


def plain_processing(handle):
    """Interval in minutes and processing over time, from the keys stepRange and stepType."""
    if eccodes.codes_is_defined(handle, "dataType") and eccodes.codes_get(handle, "dataType")[1:] == "cmean":
        return -1, "mean"  # a month, which GRIB1 does not state
    start, _, end = eccodes.codes_get_string(handle, "stepRange").partition("-")
    step_type = eccodes.codes_get(handle, "stepType")
    process = PROCESSES.get(step_type, f"time processing {step_type}")
    if process == "instant" and eccodes.codes_get(handle, "shortName") == "tp":
        # ECMWF accumulates since the start of the forecast; other centres do not say.
        since_start = eccodes.codes_get(handle, "centre") == "ecmf"
        return 60 * int(start) if since_start else -1, "accumulation"
    return 60 * (int(end) - int(start)) if end else 0, process


def minutes_of(handle):
    """The end of the step in minutes, -1 where ecCodes cannot convert it."""
    for unit, minutes in (("m", 1), ("h", 60)):
        with suppress(eccodes.CodesInternalError, ValueError):
            eccodes.codes_set(handle, "stepUnits", unit)
            return minutes * int(eccodes.codes_get_string(handle, "endStep").removesuffix(unit))
    return -1


def plain_rows(plain, path, processed=True, every=1):
    """The same rows, or each of some, by ecCodes alone."""
    for handle in islice(plain.handles(path), None, None, every):
        row = {
            key: plain.get(handle, key, str, "")
            for key in ("shortName", "name", "units", "dataType", "typeOfLevel", "gridType")
        }
        row |= {key: eccodes.codes_get_long(handle, key) for key in ("dataDate", "dataTime", "totalLength")}
        row |= {key: plain.get(handle, key, int, 0) for key in ("level", "number")}
        if processed:
            row["interval"], row["process"] = plain_processing(handle)
            template = eccodes.codes_get(handle, "productDefinitionTemplateNumber")
            row["product"] = "climate mean" if row["dataType"] == "hcmean" else PRODUCTS.get(template, "")
        row["minutes"] = minutes_of(handle)
        yield row


def table_rows(path):
    return list(rows(Table.of(path)))


def test_every_real_message_has_the_keys_of_ecCodes(real_files, plain):
    for path in real_files:
        found = table_rows(path)
        every = 1 + len(found) // 50  # messages of a long file are alike
        assert found[::every] == list(plain_rows(plain, path, every=every)), path.name


ORDINARY = st.fixed_dictionaries(
    {
        "shortName": st.sampled_from(["2t", "z", "tp"]),
        "dataDate": st.sampled_from([19000101, 19991231, 20000101, 20001231, 20010101, 20180104, 20991231]),
        "dataTime": st.sampled_from([0, 600, 1230]),
        "endStep": st.sampled_from([0, 24, 240, 255, 256, 1104]),
        "perturbationNumber": st.integers(0, 254),
    }
)


@settings(max_examples=20)
@given(st.sampled_from([1, 26, 30, 36, 15, None]), st.lists(ORDINARY, min_size=1, max_size=4))
def test_messages_of_grib1_have_the_keys_of_ecCodes(plain, tmp_path_factory, definition, messages):
    """In one file, so that several messages share a kind; None is another centre than ECMWF."""
    local = {"setLocalDefinition": 1, "localDefinitionNumber": definition} if definition else {"centre": "kwbc"}
    encoder = Encoder(GRID, **local)
    path = tmp_path_factory.mktemp("made") / "file"
    with path.open("wb") as file:
        for keys in messages:
            number = {} if definition else {"deleteLocalDefinition": 1}
            keys = {name: value for name, value in keys.items() if definition or name != "perturbationNumber"}
            file.write(encoder.encode(np.zeros(GRID.shape), typeOfLevel="surface", **number, **keys))
    assert table_rows(path) == list(plain_rows(plain, path))


def message2(template, **keys):
    """A message of GRIB2 with a product template: 2t, or tp of an interval in templates 8 and 11."""
    keys = {"dataDate": 20180104, "dataTime": 600, "step": 24, "start": 0, "number": 3} | keys
    step, start, number = (keys.pop(name) for name in ("step", "start", "number"))
    keys |= {"perturbationNumber": number, "numberOfForecastsInEnsemble": 51} if template in (1, 11) else {}
    over_time = template in (8, 11)
    keys |= {"shortName": "tp", "stepRange": f"{start}-{step}"} if over_time else {"shortName": "2t", "step": step}
    first = {"centre": "ecmf", "productDefinitionTemplateNumber": template, "typeOfLevel": "surface", "level": 0}
    return Encoder(GRID, edition=2, **first).encode(np.arange(12.0).reshape(GRID.shape), **keys)


FORECASTS = (0, 1, 8, 11)
MESSAGE2 = st.fixed_dictionaries(
    {
        "dataDate": st.sampled_from([19000101, 19991231, 20000229, 20180104, 20991231]),
        "dataTime": st.sampled_from([0, 600, 1230]),
        "step": st.sampled_from([24, 48, 255, 256, 1104]),
        "start": st.sampled_from([0, 6, 18]),
        "number": st.integers(0, 254),
    }
)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.sampled_from(FORECASTS), MESSAGE2), min_size=1, max_size=6))
def test_messages_of_grib2_have_the_keys_of_ecCodes(plain, tmp_path_factory, messages):
    path = tmp_path_factory.mktemp("made") / "file"
    path.write_bytes(b"".join(message2(template, **keys) for template, keys in messages))
    assert table_rows(path) == list(plain_rows(plain, path))


@settings(max_examples=40)
@given(
    st.sampled_from([0, 1, 2, 10, 11, 12]),
    st.sampled_from([0, 1, 2, 3, 4, 5, 10, 13]),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_unusual_times_are_read_by_ecCodes(plain, tmp_path_factory, unit, indicator, p1, p2, offset):
    """Octets 18 to 21 of GRIB1 section 1: unit, P1, P2, time range indicator."""
    if indicator in (2, 3, 4, 5) and p2 < p1:
        p1, p2 = p2, p1
    encoder = Encoder(GRID, **ECMWF)
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
    found = table_rows(path)
    assert all(row["minutes"] < 0 or row == other for row, other in zip(found, expected, strict=True))
    assert found[2] == expected[2]


@pytest.fixture(scope="module")
def originals():
    return {template: message2(template) for template in (*FORECASTS, 2, 12)}


@settings(max_examples=50)
@given(st.sampled_from([*FORECASTS, 2, 12]), st.data())
def test_random_octets_are_read_as_by_ecCodes(plain, tmp_path_factory, originals, template, data):
    """The second message has random octets in sections 1 and 4, after an ordinary message of its kind."""
    message = bytearray(originals[template])
    product = section(message, 4)
    places = [*range(21, 37), *range(product + 9, product + message[product + 3])]
    for place in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
        message[place] = data.draw(st.sampled_from([0, 1, 2, 3, 11, 13, 60, 128, 255]) | st.integers(0, 255))
    path = tmp_path_factory.mktemp("octets") / "file"
    path.write_bytes(originals[template] + message)
    try:
        expected, found = list(plain_rows(plain, path, processed=False)), table_rows(path)
    except (eccodes.CodesInternalError, ValueError, InputError):
        return  # ecCodes cannot read the message, or its date is impossible
    assert [[row[key] for key in SURE] for row in found] == [[row[key] for key in SURE] for row in expected]


def test_long_steps_are_exact_minutes(tmp_path):
    """In the first message of a kind and in others."""
    message, steps = bytearray(message2(1, step=0)), (9_999, 24, 16_666, 16_667, 65_560, 100_000)
    at = section(message, 4) + 18
    messages = [message[:at] + hours.to_bytes(4, "big") + message[at + 4 :] for hours in steps]
    (tmp_path / "file").write_bytes(b"".join(messages))
    assert Table.of(tmp_path / "file").records["step"].tolist() == [60 * hours for hours in steps]


@pytest.mark.parametrize(("edition", "kinds"), [(1, 2), (2, 3)])
def test_ecCodes_reads_one_message_of_each_kind(plain, tmp_path, monkeypatch, edition, kinds):
    """Another date, step or member is no other kind."""
    keys = [
        {"dataDate": 20200101 + date, "step": 24 * step + 24, "number": number}
        for date, step, number in np.ndindex(2, 2, 5)
    ]
    if edition == 1:
        encode = partial(Encoder(GRID, **ECMWF).encode, np.zeros(GRID.shape))
        messages = [encode(shortName=name, **own) for name in ("2t", "skt") for own in keys]
    else:
        messages = [message2(template, start=own["step"] - 6, **own) for template in (0, 1, 11) for own in keys]
    asked, original = [], eccodes.codes_new_from_message
    monkeypatch.setattr(eccodes, "codes_new_from_message", lambda m: asked.append(1) or original(m))
    (tmp_path / "file").write_bytes(b"".join(messages))
    found = table_rows(tmp_path / "file")
    assert len(asked) == kinds
    assert found == list(plain_rows(plain, tmp_path / "file"))


def test_fewer_values_than_points_are_decoded_by_ecCodes(tmp_path):
    """Section 5 may give a smaller number."""
    message = bytearray(message2(0))
    message[section(message, 5) + 8] = 11
    message[section(message, 7) + 3] -= 2
    del message[-6:-4]
    message[8:16] = len(message).to_bytes(8, "big")
    (tmp_path / "file").write_bytes(message)
    assert Table.of(tmp_path / "file").records["bits"].tolist() == [-1]


def test_octets_that_differ_from_ecCodes_are_not_used(tmp_path, monkeypatch):
    """If octet 50 does not hold the number, ecCodes reads it."""
    monkeypatch.setattr(headers, "NUMBER_AT_50", (15,))  # which holds the number in octet 51, the system in octet 50
    encoder = Encoder(GRID, **ECMWF | {"localDefinitionNumber": 15})
    numbers = [3, 1, 2, 3]
    path = tmp_path / "file"
    path.write_bytes(b"".join(encoder.encode(np.zeros(GRID.shape), perturbationNumber=k) for k in numbers))
    assert Table.of(path).records["number"].tolist() == numbers


def test_the_variable_of_a_kind():
    for changes, expected in (
        ({}, "t@500"),
        ({"short_name": "2t", "type_of_level": "heightAboveGround", "level": 2}, "2t"),
        ({"short_name": "z", "type_of_level": "surface", "level": 0}, "z"),
        ({"type_of_level": "isobaricInPa", "level": 5000}, "t@50"),
        ({"type_of_level": "isobaricInPa", "level": 50}, None),
        ({"type_of_level": "isobaricInPa", "level": 10050}, None),
        ({"short_name": "no-name"}, None),
        ({"process": "mean"}, "t@500:mean"),
        ({"product": "ensemble mean"}, None),
        ({"process": "time processing rms"}, None),
    ):
        pressure = Kind("t", 130, "", "", "instant", "", "isobaricInhPa", 500.0, "pf", "0001", Layout("regular_ll"))
        assert replace(pressure, **changes).variable == (Variable.parse(expected) if expected else None)


def changed(edition, places, octets):
    message = bytearray(Encoder(GRID, edition=edition, dataDate=19980104).encode(np.zeros(GRID.shape)))
    message[places] = octets
    return bytes(message)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "file is empty"),
        (b"\0" * 1000, "file is not GRIB"),
        (changed(1, slice(21, 22), b"\x0d"), "file holds a message with the impossible date 1998-13-4"),
        # Section 1 is longer than the message.
        (changed(2, slice(16, 20), (10**6).to_bytes(4, "big")), "file: ecCodes cannot read the message at byte 0"),
    ],
)
def test_files_without_a_readable_message_are_refused(tmp_path, content, sentence):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        Table.of(tmp_path / "file")
