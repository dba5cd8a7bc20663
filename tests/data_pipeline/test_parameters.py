"""The table of parameters against ecCodes."""

import re

import eccodes
import pytest

from data_pipeline.task import Variable
from data_pipeline.variables.parameters import FRACTION, NON_NEGATIVE, PARAMETERS, UNBOUNDED, VECTOR_COMPONENTS


def described_by_eccodes(name):
    message = eccodes.codes_grib_new_from_samples("GRIB1")
    has_levels = name in PARAMETERS and PARAMETERS[name].has_levels
    eccodes.codes_set(message, "typeOfLevel", "isobaricInhPa" if has_levels else "surface")
    eccodes.codes_set(message, "shortName", name)
    found = eccodes.codes_get(message, "units"), eccodes.codes_get(message, "name")
    eccodes.codes_release(message)
    return found


@pytest.mark.parametrize("name", PARAMETERS)
def test_units_and_long_names_are_those_of_eccodes(name):
    assert PARAMETERS[name][:2] == described_by_eccodes(name)


@pytest.mark.parametrize("name", [*PARAMETERS, *VECTOR_COMPONENTS])
def test_vector_components_are_those_that_eccodes_names_so(name):
    _, long_name = described_by_eccodes(name)
    component = re.search(r"\b[UV][ -]component|\b[UV] wind component|eastward|northward", long_name, re.IGNORECASE)
    assert Variable(name).parity == (-1 if component else 1), long_name


def test_bounds_and_land_masks():
    """All other parameters are amounts, wind speeds or absolute temperatures, which are never negative."""
    of_bounds = {
        UNBOUNDED: ["z", "u", "v", "w", "d", "vo", "gh", "msl", "sp", "10u", "10v", "e", "str", "strd", "sshf", "slhf",
                    "ttr", "lsm"],
        FRACTION: ["tcc", "lcc", "mcc", "hcc", "ci"],
    }  # fmt: skip
    for name, known in PARAMETERS.items():
        assert known.bounds == next((b for b, names in of_bounds.items() if name in names), NON_NEGATIVE), name
        assert (known.trace > 0) == (name in ("cp", "tp", "lsp", "sf", "cape")), name
        assert known.sea_only == (name in ("sst", "swh")), name
    assert (Variable("xyz").bounds, Variable("xyz").sea_only) == (UNBOUNDED, False)


def test_processing_agrees_with_the_long_names_of_eccodes():
    words = {"Maximum": "maximum", "Minimum": "minimum", "Mean sea": "instant", "Mean": "mean"}
    for name, known in PARAMETERS.items():
        process = next((process for word, process in words.items() if known.long_name.startswith(word)), None)
        assert process in (None, known.process), name
        hours = re.search(r"in the last (\d+) hours", known.long_name)
        assert known.hours == (int(hours[1]) if hours else 0), name
        assert not known.water or known.units in ("m", "m of water equivalent"), name
