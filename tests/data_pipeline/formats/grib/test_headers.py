"""Headers of GRIB2 messages against ecCodes."""

from contextlib import suppress
from datetime import UTC, datetime

import eccodes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib import table as module
from data_pipeline.formats.grib.table import Table

TEMPLATES = {0: "instant", 1: "instant", 8: "accum", 11: "accum"}


def make_message(template, *, date=20180104, time=600, step=24, start=0, number=3, bits=16, constant=False, **keys):
    """A message with one of the product templates, made by ecCodes alone."""
    handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
    ensemble, interval = template in (1, 11), template in (8, 11)
    for key, value in {
        "centre": "ecmf", "Ni": 4, "Nj": 3, "bitsPerValue": bits, "productDefinitionTemplateNumber": template,
        "typeOfLevel": "surface", "level": 0, "dataDate": date, "dataTime": time, **keys,
        **({"perturbationNumber": number, "numberOfForecastsInEnsemble": 51} if ensemble else {}),
        **({"shortName": "tp", "stepRange": f"{start}-{step}"} if interval else {"shortName": "2t", "step": step}),
    }.items():  # fmt: skip
        eccodes.codes_set(handle, key, value)
    eccodes.codes_set_values(handle, np.full(12, 280.0) if constant else np.arange(12.0))
    try:
        return eccodes.codes_get_message(handle)
    finally:
        eccodes.codes_release(handle)


def section(message, number):
    """The position of a section."""
    at = 16
    while message[at + 4] != number:
        at += int.from_bytes(message[at : at + 4], "big")
    return at


def plain_rows(plain, path):
    """Start, step in minutes, member and name of every message, read by ecCodes."""
    for handle in plain.handles(path):
        date, time = eccodes.codes_get(handle, "dataDate"), eccodes.codes_get(handle, "dataTime")
        start = datetime(date // 10000, date // 100 % 100, date % 100, time // 100, time % 100, tzinfo=UTC)
        step = -1
        for unit, minutes in (("m", 1), ("h", 60)):
            with suppress(eccodes.CodesInternalError, ValueError):
                eccodes.codes_set(handle, "stepUnits", unit)
                step = minutes * int(eccodes.codes_get_string(handle, "endStep").removesuffix(unit))
                break
        number = plain.get(handle, "number", int, 0)
        yield int(start.timestamp()), step, number, eccodes.codes_get(handle, "shortName")


def rows(table):
    return [
        (*record[["init", "step", "number"]].tolist(), table.kinds[record["kind"]].short_name)
        for record in table.records
    ]


MESSAGE = st.fixed_dictionaries(
    {
        "date": st.sampled_from([19000101, 19991231, 20000229, 20180104, 20991231]),
        "time": st.sampled_from([0, 600, 1230]),
        "step": st.sampled_from([24, 48, 255, 256, 1104]),
        "start": st.sampled_from([0, 6, 18]),
        "number": st.integers(0, 254),
    }
)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(list(TEMPLATES)), MESSAGE), min_size=1, max_size=6))
def test_generated_messages_have_the_keys_of_ecCodes(plain, tmp_path_factory, messages):
    path = tmp_path_factory.mktemp("made") / "file"
    path.write_bytes(b"".join(make_message(template, **keys) for template, keys in messages))
    assert rows(Table.of(path)) == list(plain_rows(plain, path))


@pytest.fixture(scope="module")
def originals():
    return {template: make_message(template) for template in (*TEMPLATES, 2, 12)}


@settings(max_examples=80)
@given(st.sampled_from([*TEMPLATES, 2, 12]), st.data())
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
        expected = list(plain_rows(plain, path))
    except (eccodes.CodesInternalError, ValueError):
        return  # ecCodes cannot read the message
    try:
        found = rows(Table.of(path))
    except InputError:
        return  # an impossible date
    assert found == expected


@pytest.mark.parametrize("hours", [9_999, 16_666, 16_667, 65_560, 100_000])
def test_long_steps_are_exact_minutes(tmp_path, hours):
    """In the first message of a kind and in others."""
    message = bytearray(make_message(1, step=0))
    at = section(message, 4) + 18
    message[at : at + 4] = hours.to_bytes(4, "big")
    (tmp_path / "file").write_bytes(bytes(message) + make_message(1, step=24) + bytes(message))
    assert Table.of(tmp_path / "file").records["step"].tolist() == [60 * hours, 24 * 60, 60 * hours]


def test_ecCodes_reads_one_message_of_each_kind(tmp_path, monkeypatch):
    asked, original = [], eccodes.codes_new_from_message
    monkeypatch.setattr(module.eccodes, "codes_new_from_message", lambda m: asked.append(1) or original(m))
    path = tmp_path / "file"
    path.write_bytes(
        b"".join(
            make_message(template, date=date, step=step, start=step - 6, number=number)
            for template in (0, 1, 11)
            for date in (19980104, 20180104)
            for step in (24, 48)
            for number in range(4)
        )
    )
    assert len(Table.of(path).records) == 48
    assert len(asked) == 3


@pytest.mark.parametrize("packing", ["grid_simple", "grid_ccsds", "grid_complex"])
def test_messages_in_other_packings_are_read_without_ecCodes_too(tmp_path, monkeypatch, packing):
    asked, original = [], eccodes.codes_new_from_message
    path = tmp_path / "file"
    path.write_bytes(b"".join(make_message(1, number=number, packingType=packing) for number in range(5)))
    monkeypatch.setattr(module.eccodes, "codes_new_from_message", lambda m: asked.append(1) or original(m))
    records = Table.of(path).records
    assert records["number"].tolist() == list(range(5))
    assert len(asked) == 1
    assert records["bits"].tolist() == [16 if packing == "grid_simple" else -1] * 5


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize("bits", [0, 1, 12, 16, 24])
def test_packing_parameters(tmp_path, plain, edition, bits):
    path = tmp_path / "file"
    message = eccodes.codes_new_from_message(make_message(0, bits=bits, constant=bits == 0))
    eccodes.codes_set(message, "edition", edition)
    path.write_bytes(eccodes.codes_get_message(message))
    (record,), handle = Table.of(path).records, next(plain.handles(path))
    for name, key in {
        "bits": "bitsPerValue", "binary": "binaryScaleFactor", "decimal": "decimalScaleFactor",
        "reference": "referenceValue", "data": "offsetBeforeData",
    }.items():  # fmt: skip
        assert record[name] == eccodes.codes_get(handle, key), name


def test_fewer_values_than_points_are_decoded_by_ecCodes(tmp_path):
    """Section 5 may give a smaller number."""
    message = bytearray(make_message(0))
    message[section(message, 5) + 8] = 11
    message[section(message, 7) + 3] -= 2
    del message[-6:-4]
    message[8:16] = len(message).to_bytes(8, "big")
    (tmp_path / "file").write_bytes(message)
    assert Table.of(tmp_path / "file").records["bits"].tolist() == [-1]
