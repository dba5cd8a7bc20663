"""The table of parameters against ecCodes; units: spellings, and conversions against values that are written out."""

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
from data_pipeline.variables.units import USUAL, Conversion, _convert, find_conversion, normalize_units


def described_by_eccodes(name):
    message = eccodes.codes_grib_new_from_samples("GRIB2" if name == "2r" else "GRIB1")  # GRIB1 of ECMWF has no 2r
    has_levels = name in PARAMETERS and PARAMETERS[name].has_levels
    eccodes.codes_set(message, "typeOfLevel", "isobaricInhPa" if has_levels else "surface")
    eccodes.codes_set(message, "shortName", name)
    found = eccodes.codes_get(message, "units"), eccodes.codes_get(message, "name")
    eccodes.codes_release(message)
    return found


def test_units_long_names_and_vector_components_are_those_of_eccodes():
    for name in (*PARAMETERS, *VECTOR_COMPONENTS):
        units, long_name = described_by_eccodes(name)
        assert name not in PARAMETERS or PARAMETERS[name][:2] == (units, long_name)
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


# Units


@pytest.mark.parametrize(
    ("units", "wanted", "expected"),
    [
        ("K", "K", Conversion()), ("degC", "K", Conversion(offset=273.15)), ("Celsius", "K", Conversion(offset=273.15)),
        ("hPa", "Pa", Conversion(100.0)), ("millibars", "Pa", Conversion(100.0)), ("m/s", "m s**-1", Conversion()),
        ("m s^-1", "m s**-1", Conversion()),
        ("m.s-1", "m s**-1", Conversion()), ("meters per second", "m s**-1", Conversion()),
        ("m2/s2", "m**2 s**-2", Conversion()), ("s-2 m2", "m² s⁻²", Conversion()), ("m", "m**2 s**-2", None),
        ("kg/kg", "kg kg**-1", Conversion()), ("g/kg", "kg kg**-1", Conversion(1e-3)), ("1", "kg kg**-1", Conversion()),
        ("%", "(0 - 1)", Conversion(0.01)), ("(0 - 1)", "%", Conversion(100.0)), ("mm", "m", Conversion(1e-3)),
        ("kg m-2", "m", None), ("degF", "K", Conversion(5 / 9, 459.67 * 5 / 9)),
        ("kt", "m s**-1", Conversion(1852 / 3600)),
        ("", "K", None), ("K", "Pa", None), ("mb", "Pa", Conversion(100.0)), ("C", "K", Conversion(offset=273.15)),
        ("gpm", "m", Conversion()), ("dam", "gpm", Conversion(10.0)), ("no such unit (", "K", None),
        ("1/s", "s**-1", Conversion()), ("Pa/s", "Pa s**-1", Conversion()),
    ],
)  # fmt: skip
def test_unit_conversions(units, wanted, expected):
    found = find_conversion(units, wanted)
    assert found == (expected and pytest.approx(expected, rel=1e-15))


def test_a_mass_of_water_per_area_is_a_depth_only_for_amounts_of_water():
    for units, factor in (("kg m-2", 1e-3), ("mm", 1e-3), ("m of water equivalent", 1.0), ("in", 0.0254)):
        assert find_conversion(units, "m", water=True) == Conversion(factor)
    assert find_conversion("m", "kg m**-2", water=True) == Conversion(1000.0)
    assert find_conversion("kg m-2 s-1", "mm/day", water=True) == Conversion(86_400.0)
    assert find_conversion("K", "m", water=True) is None


def test_the_inverse_is_the_conversion_the_other_way_and_usual_conversions_are_those_of_pint():
    for pair in (("degC", "K"), ("%", "1"), ("hPa", "Pa"), ("degF", "degC")):
        there, back = find_conversion(*pair), find_conversion(*reversed(pair))
        assert there.inverse == pytest.approx(back, rel=1e-14)
        assert (Conversion().changes, there.changes) == (False, True)
    for pair, usual in USUAL.items():
        assert usual == _convert(*pair, water=False), pair


def test_spellings_of_one_unit_are_equal():
    for spellings in (("m s-1", "m/s", "m s**-1", "m s⁻¹", "m.s^-1"), ("1", "", "(0 - 1)", "kg/kg"), ("K", "Kelvin")):
        assert len({normalize_units(units) for units in spellings}) == 1


def test_height_becomes_geopotential_only_by_its_standard_name():
    assert find_conversion("m", "m**2 s**-2", standard_name="geopotential_height") == Conversion(9.80665)
    assert find_conversion("gpm", "m**2 s**-2", standard_name="geopotential_height") == Conversion(9.80665)
    assert find_conversion("m", "m**2 s**-2", standard_name="height") is None
