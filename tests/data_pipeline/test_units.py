"""Units: spellings, and conversions against values that are written out."""

import pytest

from data_pipeline.variables.units import USUAL, Conversion, _convert, find_conversion, normalize_units


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


@pytest.mark.parametrize("pair", [("degC", "K"), ("%", "1"), ("hPa", "Pa"), ("degF", "degC")])
def test_the_inverse_is_the_conversion_the_other_way(pair):
    there, back = find_conversion(*pair), find_conversion(*reversed(pair))
    assert there.inverse == pytest.approx(back, rel=1e-14)
    assert (Conversion().changes, there.changes) == (False, True)


def test_spellings_of_one_unit_are_equal():
    for spellings in (("m s-1", "m/s", "m s**-1", "m s⁻¹", "m.s^-1"), ("1", "", "(0 - 1)", "kg/kg"), ("K", "Kelvin")):
        assert len({normalize_units(units) for units in spellings}) == 1


def test_height_becomes_geopotential_only_by_its_standard_name():
    assert find_conversion("m", "m**2 s**-2", standard_name="geopotential_height") == Conversion(9.80665)
    assert find_conversion("gpm", "m**2 s**-2", standard_name="geopotential_height") == Conversion(9.80665)
    assert find_conversion("m", "m**2 s**-2", standard_name="height") is None


@pytest.mark.parametrize("pair", USUAL)
def test_usual_conversions_are_those_of_pint(pair):
    assert USUAL[pair] == _convert(*pair, water=False)
