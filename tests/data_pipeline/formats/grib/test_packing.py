"""Values decoded by numpy equal those of ecCodes, bit for bit."""

from itertools import product

import eccodes
import numpy as np
import pytest
from grib_parts import plain_message, section
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib import decode as module
from data_pipeline.formats.grib import grib_reader as source
from data_pipeline.formats.grib.grib_catalog import MessageCatalog
from data_pipeline.formats.grib.horizontal import ALTERNATIVE_ROWS
from data_pipeline.formats.grib.packing import BLOCK_VALUES, SMALL_BLOCK_VALUES
from data_pipeline.formats.grib.table import Table
from data_pipeline.formats.open import open_ensemble

ROWS, COLUMNS = 5, 7
DTYPES = (np.float32, np.float64)


def make_message(edition, bits, values=None, scanning=0, **keys):
    """A message of random values, or of one constant in 0 bits."""
    if values is None:
        values = np.random.default_rng(bits).normal(280, 10, (ROWS, COLUMNS)) if bits else np.full((ROWS, COLUMNS), 3.7)
    return plain_message(edition, values, bits, scanning, **keys)


def sections(message):
    """The positions of the packing section and of the values."""
    if message[7] == 1:
        at = 8 + int.from_bytes(message[8:11], "big")
        if message[15] & 128:
            at += int.from_bytes(message[at : at + 3], "big")
        return at, at + 11
    return section(message, 5), section(message, 7) + 5


def signed(value, size):
    return (abs(value) | (value < 0) << (8 * size - 1)).to_bytes(size, "big")


def rewrite(message, reference, binary, decimal, octets=None):
    """The message with another reference value (four octets), scale factors and packed values."""
    message = bytearray(message)
    packing, data = sections(message)
    if message[7] == 1:
        message[34:36] = signed(decimal, 2)
        message[packing + 4 : packing + 10] = signed(binary, 2) + reference
    else:
        message[packing + 11 : packing + 19] = reference + signed(binary, 2) + signed(decimal, 2)
    if octets is not None:
        message[data : data + len(octets)] = octets
    return bytes(message)


def read(path, dtype):
    """All fields of a file in file order, and whether numpy decoded each."""
    table = Table.of(path)
    messages = MessageCatalog.gather(path, None)
    out = np.empty((len(table.records), *messages.reader.grid.shape), dtype)
    messages.reader.read(np.arange(len(out)), out, (slice(None), slice(None)))
    return out, messages.reader.locations["bits"] >= 0


def field_of(path):
    """The only variable of a file, as a lazy array."""
    (field,) = open_ensemble(path, chunks=None).values()
    return field


def expected(message, dtype):
    """The values decoded by ecCodes, in stored order."""
    handle = eccodes.codes_new_from_message(message)
    try:
        eccodes.codes_set(handle, "missingValue", np.nan)
        if dtype == np.float32 and eccodes.codes_get(handle, "packingType") not in DOUBLE_ONLY:
            values = eccodes.codes_get_float_array(handle, "values")
        else:
            values = eccodes.codes_get_double_array(handle, "values").astype(dtype)
        return values, *(eccodes.codes_get_array(handle, f"{name}itudes") for name in ("lat", "long"))
    finally:
        eccodes.codes_release(handle)


def assert_same(path, message):
    """Compare all bits; return whether numpy decoded the message."""
    path.write_bytes(message)
    for dtype in DTYPES:
        (field,), (by_numpy,) = read(path, dtype)
        values, lat, lon = expected(message, dtype)
        order = np.lexsort([lon, -lat])  # north first, west to east
        assert field.tobytes() == values[order].tobytes()
    return by_numpy


@pytest.mark.parametrize("edition", [1, 2])
def test_every_number_of_bits_and_every_scan(tmp_path, edition):
    scans = [scan for scan in range(0, 256, 16) if not scan & ALTERNATIVE_ROWS]
    for bits, scanning in (*((bits, 0) for bits in range(33)), *product((8, 12, 24), scans)):
        by_numpy = assert_same(tmp_path / "file", make_message(edition, bits, scanning=scanning))
        assert by_numpy == (bits in (0, 8, 16, 24, 32)), (bits, scanning)


DOUBLE_ONLY = ("grid_ieee", "grid_jpeg")
HOLES = np.where(np.arange(ROWS * COLUMNS) % 7 == 3, np.nan, np.linspace(270, 290, ROWS * COLUMNS))


@pytest.mark.parametrize(
    ("edition", "keys"),
    [
        *((edition, {"values": HOLES.reshape(ROWS, COLUMNS)}) for edition in (1, 2)),
        (1, {"packingType": "grid_second_order"}),
        *((2, {"packingType": f"grid_{name}"}) for name in ("ccsds", "complex", "complex_spatial_differencing")),
        *((2, {"packingType": name}) for name in DOUBLE_ONLY),
    ],
    ids=str,
)
def test_bitmaps_and_other_packings_are_decoded_by_ecCodes(tmp_path, edition, keys):
    assert not assert_same(tmp_path / "file", make_message(edition, 16, **keys))


REFERENCES = st.one_of(
    st.binary(min_size=4, max_size=4),
    st.builds(bytes, st.tuples(st.sampled_from([0x42, 0x43, 0xC2, 0x44, 0x3E]), *[st.integers(0, 255)] * 3)),
    st.just(bytes(4)),
)
SCALES = st.integers(-20, 20) | st.integers(-400, 400)


@settings(max_examples=60)
@given(
    st.sampled_from([1, 2]),
    st.sampled_from([0, 8, 16, 24, 32]),
    REFERENCES,
    SCALES,
    st.just(0) | st.integers(-12, 12),
    st.randoms(use_true_random=False),
)
@example(1, 24, b"\x42\x64\x00\x00", -100, 0, None)
@example(2, 32, b"\x43\x8c\x00\x00", 40, -10, None)
def test_any_header(tmp_path_factory, edition, bits, reference, binary, decimal, random):
    """Random reference, scale factors and packed values; ecCodes decodes values beyond single precision."""
    octets = random.randbytes(ROWS * COLUMNS * bits // 8) if random else bytes([255]) * (ROWS * COLUMNS * bits // 8)
    message = rewrite(make_message(edition, bits), reference, binary, decimal, octets)
    value = np.frombuffer(reference, ">f4")[0]
    # ecCodes does not read subnormal and infinite reference values consistently.
    assume(edition == 1 or (np.isfinite(value) and (value == 0 or abs(value) > 2e-38)))
    path = tmp_path_factory.mktemp("header") / "file"
    by_numpy = assert_same(path, message)
    if by_numpy:
        assert -100 <= binary <= 40
        assert abs(decimal) <= (10 if bits else 0)


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize(("bits", "decimal"), [(16, 0), (24, 0), (16, 2), (32, 1)])
def test_fields_longer_than_a_block(tmp_path, edition, bits, decimal):
    block = SMALL_BLOCK_VALUES if decimal else BLOCK_VALUES
    random = np.random.default_rng(1)
    values = random.normal(280, 10, (2 * block // 1001 + 1, 1001))
    message = make_message(edition, bits, values)
    at = sections(message)[0] + (6 if edition == 1 else 11)
    message = rewrite(message, message[at : at + 4], -7, decimal, random.bytes(values.size * bits // 8))
    (tmp_path / "file").write_bytes(message)
    for dtype in DTYPES:
        (field,), (by_numpy,) = read(tmp_path / "file", dtype)
        assert by_numpy
        assert field.tobytes() == expected(message, dtype)[0].tobytes()


# Parts of fields


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize(("bits", "scanning"), [(8, 0), (16, 64), (24, 128), (32, 32)])
def test_a_band_of_rows_equals_the_same_rows_of_the_field(tmp_path, edition, bits, scanning, monkeypatch):
    field = np.random.default_rng(bits).normal(280, 10, (9, COLUMNS))
    (tmp_path / "file").write_bytes(make_message(edition, bits, field, scanning))
    values = field_of(tmp_path / "file").squeeze()
    whole = values.copy().load().values
    sizes, original = [], module.os.preadv
    monkeypatch.setattr(module.os, "preadv", lambda *arguments: sizes.append(original(*arguments)) or sizes[-1])
    for first, last in ((0, 2), (3, 4), (5, 9)):
        np.testing.assert_array_equal(values[first:last].values, whole[first:last])
        assert sizes.pop() == bits // 8 * COLUMNS * (9 if scanning == 32 else last - first)
    np.testing.assert_array_equal(values[2:7:2, 1:3].values, whole[2:7:2, 1:3])
    assert sizes.pop() == bits // 8 * COLUMNS * (9 if scanning == 32 else 5)


def test_a_file_cut_off_after_opening_is_noticed(tmp_path, monkeypatch):
    """Its stamp is correct, but the bytes are missing when they are read."""
    (tmp_path / "file").write_bytes(make_message(1, 16))
    field = field_of(tmp_path / "file")
    stamp = Table.of(tmp_path / "file").stamp
    (tmp_path / "file").write_bytes(make_message(1, 16)[:-30])
    monkeypatch.setattr(source.Stamp, "of", lambda descriptor: stamp)
    with pytest.raises(InputError, match="file has changed at byte 0 since it was opened"):
        field.load()


def test_values_that_ecCodes_cannot_decode_are_refused_with_the_position(tmp_path):
    message = bytearray(make_message(2, 16, packingType="grid_ccsds"))
    packing, _ = sections(message)
    message[packing + 22] = 7  # no block is so long
    (tmp_path / "file").write_bytes(message)
    with pytest.raises(InputError, match="the values of the message at byte 0 cannot be decoded"):
        field_of(tmp_path / "file").load()
