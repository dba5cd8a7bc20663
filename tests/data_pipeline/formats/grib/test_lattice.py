"""Values that a packing can hold, in every packing: lattices of members, and what ecCodes decodes of new messages."""

import eccodes
import numpy as np
import pytest
from correction_runs import rewrite_fields
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.lattice import Lattice
from data_pipeline.formats.grib.packing import Resolution
from data_pipeline.formats.open import open_ensemble
from data_pipeline.grid import Grid
from data_pipeline.task import Variable
from data_pipeline.writing import Encoder, repack

GRID = Grid.regular(5, 8)


def forecast(members, bits, decimal):
    """A file with one message per member, packed with `bits` or with `decimal` digits."""
    encoder = Encoder(
        GRID, centre="ecmf", setLocalDefinition=1, localDefinitionNumber=26, shortName="2t",
        typeOfLevel="surface", dataDate=20180101,
    )  # fmt: skip
    for number, member in enumerate(members):
        handle = eccodes.codes_new_from_message(encoder.encode(member, bitsPerValue=bits, perturbationNumber=number))
        if decimal is not None:
            eccodes.codes_set(handle, "changeDecimalPrecision", decimal)
        yield eccodes.codes_get_message(handle)
        eccodes.codes_release(handle)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([(0.0, 1e-6), (3e-5, 1e-6), (280.0, 5.0), (280.0, 0.05), (57_000.0, 900.0)]),
    packing=st.sampled_from([(10, None), (16, None), (24, None), (16, 2), (16, -1)]),
)
def test_values_on_the_lattice_are_written_and_read_unchanged(tmp_path, seed, scale, packing):
    """Also for members with very different ranges."""
    random = np.random.default_rng(seed)
    ranges = np.array([1, 0.01, 2, 0.3])[:, None, None]
    members = scale[0] + scale[1] * random.normal(size=(4, *GRID.shape)) * ranges
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"".join(forecast(members, *packing)))
    # Values of 1e-6 packed to two decimal digits: no bit is left for them.
    assume(Lattice.of(source, Variable("2t")).bits > 2)
    wanted = Lattice.of(source, Variable("2t")).round(members + scale[1] * random.normal(size=members.shape) * ranges)
    rewrite_fields(source, target, lambda message: wanted[message.number])
    found = open_ensemble(target, chunks=None)["2t"].values[0, 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-12)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), bits=st.integers(8, 24))
def test_rounding_is_small_and_keeps_the_order_of_members(seed, bits):
    members = 280 + 5 * np.random.default_rng(seed).normal(size=(6, *GRID.shape))
    rounded = Lattice(bits).round(members)
    widest = np.ptp(members, axis=(1, 2)).max()
    assert abs(rounded - members).max() <= max(2 * widest / (2**bits - 3), 300 * 2**-19)
    order = members.argsort(0)
    assert (np.diff(np.take_along_axis(rounded, order, 0), axis=0) >= 0).all()


def test_members_with_different_bits_get_the_most_bits(tmp_path):
    """A file packed to two decimal digits: a range of 0.4 K takes 6 bits, one of 40 K takes 12."""
    narrow, wide = np.linspace(280, 280.4, 40).reshape(GRID.shape), np.linspace(260, 300, 40).reshape(GRID.shape)
    (tmp_path / "source").write_bytes(b"".join(forecast([narrow, wide], 16, 2)))
    assert Lattice.of(tmp_path / "source", Variable("2t")) == Lattice(12)
    with pytest.raises(InputError, match="source has no msl"):
        Lattice.of(tmp_path / "source", Variable("msl"))
    wanted = Lattice(12).round(np.stack([wide, narrow + 1]))
    rewrite_fields(tmp_path / "source", tmp_path / "target", lambda message: wanted[message.number])
    found = open_ensemble(tmp_path / "target", chunks=None)["2t"].values[0, 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-7)


# Values that are read back before a message is written

FINE = Grid.regular(19, 36)
PACKINGS = [(1, "grid_simple"), (2, "grid_simple"), (2, "grid_ccsds"), (2, "grid_complex_spatial_differencing")]


def message(edition, packing, bits=16, holes=False, field=None):
    field = 280 + 5 * np.random.default_rng(bits).normal(size=FINE.shape) if field is None else field
    if holes:
        field[3:5, 7] = np.nan
    simple = Encoder(FINE, edition=edition, typeOfLevel="surface", shortName="2t").encode(field, bitsPerValue=bits)
    handle = eccodes.codes_new_from_message(simple)
    eccodes.codes_set(handle, "packingType", packing)
    return eccodes.codes_get_message(handle)


@pytest.mark.parametrize(("edition", "packing"), PACKINGS)
@pytest.mark.parametrize(("holes", "bits"), [(False, 8), (True, 11), (False, 16), (True, 16), (False, 24)])
def test_values_are_read_back_as_eccodes_decodes_them_and_a_changed_one_is_noticed(
    plain, edition, packing, holes, bits
):
    """A value that is off by two steps of the packing, and a missing value at another place."""
    content = message(edition, packing, bits, holes)
    stored = plain.values(eccodes.codes_new_from_message(content))
    found, used, step = repack._read_back(content, stored.size)
    np.testing.assert_array_equal(found, stored)
    handle = eccodes.codes_new_from_message(content)
    # The key of complex packing has the bits of groups. Single precision of the reference may cost one bit of 24.
    own = eccodes.codes_get(handle, "bitsPerValue")
    assert used in ((bits - 1, bits) if "complex" in packing else (own,))
    assert step == 2.0 ** eccodes.codes_get(handle, "binaryScaleFactor")
    # Complex packing may mark missing values without a bitmap.
    read = repack.missing_values(content, Layout.of(handle))
    assert (read is None) == (not holes and "complex" not in packing)
    np.testing.assert_array_equal(False if read is None else read.ravel(), np.isnan(stored))
    missing, filled = np.isnan(stored) if holes else None, np.where(np.isnan(stored), 9e9, stored)
    assert repack._holds(content, filled, missing, bits)
    if bits == 16:
        assert not repack._holds(content, filled, missing, 12)
    if holes:
        assert not repack._holds(content, stored, np.roll(missing, 1), bits)
    # With the largest deviation that the rounding of the reference value excuses.
    filled[11] += 2.0**-20 * np.nanmax(np.abs(stored)) + 2.01 * step
    assert not repack._holds(content, filled, missing, bits)


def test_the_bits_of_complex_packing_are_those_of_its_range():
    """A ramp has equal differences, so its groups need no bits, and its lattice must still be fine."""
    ramp = np.linspace(270, 300, FINE.shape[0] * FINE.shape[1]).reshape(FINE.shape)
    content = message(2, "grid_complex_spatial_differencing", 12, field=ramp)
    handle = eccodes.codes_new_from_message(content)
    assert eccodes.codes_get(handle, "bitsPerValue") < 8
    bits, step = Resolution.of(handle)
    assert bits == 12
    assert 30 / 2**12 <= step <= 30 / 2**11
