"""GRIB shortName and units of a variable."""

import eccodes
import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_variables import NameMap
from data_pipeline.variables.parameters import PARAMETERS


def test_names_of_cfgrib_and_cf_give_the_short_name():
    for name, known in PARAMETERS.items():
        handle = eccodes.codes_grib_new_from_samples(f"regular_ll_pl_grib{2 if name == '2r' else 1}")
        eccodes.codes_set(handle, "typeOfLevel", "isobaricInhPa" if known.has_levels else "surface")
        eccodes.codes_set(handle, "shortName", name)
        spelling, standard_name = (eccodes.codes_get_string(handle, key) for key in ("cfVarName", "cfName"))
        eccodes.codes_release(handle)
        assert NameMap().short_name(spelling, {}, None) == name
        assert NameMap().short_name(spelling, {"standard_name": standard_name}, None) == name


@pytest.mark.parametrize(
    ("name", "attributes", "height", "short_name"),
    [
        ("T2M", {}, None, "2t"), ("U10M", {}, None, "10u"), ("SSTK", {}, None, "sst"), ("Z", {}, None, "z"),
        ("T", {}, None, "t"), ("T", {}, 2.0, "2t"), ("v", {}, 10.0, "10v"), ("tas", {}, 2.0, "tas"),
        ("tas", {"standard_name": "air_temperature"}, 1.5, "2t"),
        ("ta", {"standard_name": "air_temperature"}, None, "t"),
        ("x", {"GRIB_shortName": "10fg"}, None, "10fg"), ("t", {"GRIB_shortName": "unknown"}, None, "unknown"),
        ("2t", {"standard_name": "air_temperature"}, None, "2t"),
        ("gh", {"standard_name": "geopotential_height"}, None, "gh"),
        ("sea_ice", {"short_name": "siconc"}, None, "ci"),
        ("wind", {"standard_name": "wind_speed"}, 10.0, "10si"), ("wind", {"standard_name": "wind_speed"}, None, "ws"),
        ("si10", {"standard_name": "wind_speed"}, None, "10si"),
        ("si10", {"standard_name": "wind_speed"}, 10.0, "10si"),
        ("fx", {"standard_name": "wind_speed_of_gust"}, 10.0, "10fg"),
        ("i10fg", {"standard_name": "wind_speed_of_gust"}, 10.0, "i10fg"),
        ("prec", {"standard_name": "lwe_precipitation_rate"}, None, "prec"),
    ],
)  # fmt: skip
def test_usual_names(name, attributes, height, short_name):
    assert NameMap().short_name(name, attributes, height) == short_name


def test_the_name_of_the_user_takes_precedence():
    assert NameMap({"t2m": "skt"}).short_name("t2m", {"GRIB_shortName": "2t"}, 2.0) == "skt"
    assert str(NameMap({"T850": "t@850"}).given("T850")) == "t@850"
    with pytest.raises(InputError, match="cannot read the variable 't@high'; write a shortName"):
        NameMap({"T850": "t@high"})
