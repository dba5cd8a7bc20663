"""Values of a message replaced and read back: as ecCodes decodes them, in every packing."""

import eccodes
import numpy as np
import pytest

from data_pipeline.formats.grib import Encoder, repack
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.packing_bits import Resolution
from data_pipeline.grid import Grid

GRID = Grid.regular(19, 36)
PACKINGS = [(1, "grid_simple"), (2, "grid_simple"), (2, "grid_ccsds"), (2, "grid_complex_spatial_differencing")]


def message(edition, packing, bits=16, holes=False, field=None):
    field = 280 + 5 * np.random.default_rng(bits).normal(size=GRID.shape) if field is None else field
    if holes:
        field[3:5, 7] = np.nan
    simple = Encoder(GRID, edition=edition, typeOfLevel="surface", shortName="2t").encode(field, bitsPerValue=bits)
    handle = eccodes.codes_new_from_message(simple)
    eccodes.codes_set(handle, "packingType", packing)
    return eccodes.codes_get_message(handle)


def values(content):
    """The values of a message in its own order, by ecCodes alone."""
    handle = eccodes.codes_new_from_message(content)
    eccodes.codes_set(handle, "missingValue", 1e30)
    found = eccodes.codes_get_values(handle)
    return np.where(found == 1e30, np.nan, found)


def layout(content):
    return Layout.of(eccodes.codes_new_from_message(content))


@pytest.mark.parametrize(("edition", "packing"), PACKINGS)
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("bits", [8, 11, 16, 24])
def test_values_are_read_back_as_eccodes_decodes_them(edition, packing, holes, bits):
    content = message(edition, packing, bits, holes)
    found, used, step = repack._read_back(content, GRID.shape[0] * GRID.shape[1])
    np.testing.assert_array_equal(found, values(content))
    handle = eccodes.codes_new_from_message(content)
    # The key of complex packing has the bits of groups. Single precision of the reference may cost one bit of 24.
    own = eccodes.codes_get(handle, "bitsPerValue")
    assert used in ((bits - 1, bits) if "complex" in packing else (own,))
    assert step == 2.0 ** eccodes.codes_get(handle, "binaryScaleFactor")


@pytest.mark.parametrize(("edition", "packing"), PACKINGS)
@pytest.mark.parametrize("holes", [False, True])
def test_headers_that_allow_missing_values_are_decoded(edition, packing, holes):
    content = message(edition, packing, holes=holes)
    missing = repack.missing_values(content, layout(content))
    assert (missing is None) == (not holes and "complex" not in packing)
    if missing is not None:
        np.testing.assert_array_equal(missing.ravel(), np.isnan(values(content)))


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize(("edition", "packing"), PACKINGS)
def test_one_changed_value_is_noticed(edition, packing, holes):
    """A value that is off by two steps of the packing, and a missing value at another place."""
    content = message(edition, packing, holes=holes)
    stored = values(content)
    missing = np.isnan(stored) if holes else None
    assert repack._holds(content, np.where(np.isnan(stored), 9e9, stored), missing, 16)
    assert not repack._holds(content, np.where(np.isnan(stored), 9e9, stored), missing, 12)
    # With the largest deviation that the rounding of the reference value excuses.
    stored[11] += 2.0**-20 * np.nanmax(np.abs(stored)) + 2.01 * repack._read_back(content, stored.size)[2]
    assert not repack._holds(content, np.where(np.isnan(stored), 9e9, stored), missing, 16)
    if holes:
        assert not repack._holds(content, values(content), np.roll(missing, 1), 16)


def test_the_bits_of_complex_packing_are_those_of_its_range():
    """A ramp has equal differences, so its groups need no bits, and its lattice must still be fine."""
    ramp = np.linspace(270, 300, GRID.shape[0] * GRID.shape[1]).reshape(GRID.shape)
    content = message(2, "grid_complex_spatial_differencing", 12, field=ramp)
    handle = eccodes.codes_new_from_message(content)
    assert eccodes.codes_get(handle, "bitsPerValue") < 8
    bits, step = Resolution.of(handle)
    assert bits == 12
    assert 30 / 2**12 <= step <= 30 / 2**11
