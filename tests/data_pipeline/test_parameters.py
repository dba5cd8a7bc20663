"""The table of parameters against ecCodes."""

import re

import eccodes
import pytest

from data_pipeline.task import Variable
from data_pipeline.variables.parameters import (
    FRACTION,
    NEAR_GROUND,
    NON_NEGATIVE,
    PARAMETERS,
    UNBOUNDED,
    VECTOR_COMPONENTS,
)


def described_by_eccodes(name):
    message = eccodes.codes_grib_new_from_samples("GRIB2" if name == "2r" else "GRIB1")  # GRIB1 of ECMWF has no 2r
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
        UNBOUNDED: ["z", "u", "v", "w", "d", "vo", "gh", "msl", "sp", "10u", "10v", "100u", "100v", "200u",
                    "200v", "e", "str", "strd", "sshf", "slhf",
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


def test_names_near_the_ground_are_those_that_eccodes_gives_to_the_same_parameter_in_other_tables():
    """The parameter aloft and its height in WMO's codes have the shortName of the row."""
    codes = {"t": (0, 0), "td": (0, 6), "dpt": (0, 6), "r": (1, 1), "q": (1, 0), "u": (2, 2), "v": (2, 3), "ws": (2, 1)}
    checked = 0
    for (aloft, height), name in NEAR_GROUND.items():
        if aloft != "gust":  # the name depends on the interval, too
            message = eccodes.codes_grib_new_from_samples("GRIB2")
            keys = {"typeOfFirstFixedSurface": 103, "scaleFactorOfFirstFixedSurface": 0}
            keys |= {"scaledValueOfFirstFixedSurface": height}
            category, number = codes[aloft]
            for key, value in {"parameterCategory": category, "parameterNumber": number, **keys}.items():
                eccodes.codes_set(message, key, value)
            assert eccodes.codes_get(message, "shortName") == name
            eccodes.codes_release(message)
            checked += 1
    assert checked == 13
