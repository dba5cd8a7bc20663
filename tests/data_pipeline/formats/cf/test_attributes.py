"""Attributes of CF and cfgrib: processing over time (the conventions, section 7.3), names and statistics."""

import eccodes
import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cell_methods import refuse_statistics, stated_process
from data_pipeline.formats.cf.cf_header import role_of
from data_pipeline.formats.cf.cf_variables import NameMap
from data_pipeline.variables.parameters import PARAMETERS


def process(**attributes):
    return stated_process(attributes, lambda name: role_of(name, {}))


def test_stated_process():
    for attributes, expected in (
        ({}, None),
        ({"cell_methods": "area: mean"}, None),
        ({"cell_methods": "mean of all values"}, None),
        ({"cell_methods": "time:Sum"}, "accumulation"),
        ({"cell_methods": "time: maximum (interval: 1 hour comment: daily) area: mean where land"}, "maximum"),
        ({"cell_methods": "time: point"}, "instant"),
        ({"cell_methods": "area: mean time: mean (interval: 1 hour)"}, "mean"),
        ({"cell_methods": "forecast_period: sum"}, "accumulation"),
        ({"cell_methods": "valid_time: maximum realization: point"}, "maximum"),
        ({"GRIB_stepType": "accum"}, "accumulation"),
        ({"GRIB_stepType": "min"}, "minimum"),
        ({"GRIB_stepType": "avgua"}, "mean"),
        # cdo daymean adds cell_methods to the attributes of the hourly fields
        ({"cell_methods": "time: mean", "GRIB_stepType": "instant"}, "mean"),
        ({"cell_methods": "time: sum", "GRIB_stepType": "accum"}, "accumulation"),
    ):
        assert process(**attributes) == expected


def test_other_statistics_are_refused():
    for attributes, sentence in (
        ({"cell_methods": "realization: mean"}, "it is the mean over members .*, no member of an ensemble"),
        ({"cell_methods": "time: point number: standard_deviation"}, "the standard deviation over members"),
        ({"cell_methods": "forecast_reference_time: mean"}, "the mean over starts"),
        ({"cell_methods": "time: variance"}, r"no means, sums, maxima or minima over time \(cell_methods 'time: var"),
        ({"GRIB_stepType": "rms"}, r"no means, sums, maxima or minima over time \(GRIB_stepType 'rms'\)"),
        ({"cell_methods": "time: maximum within days time: mean over days"}, "a climatology or a statistic of a stat"),
        ({"cell_methods": "time: mean over years"}, "a climatology or a statistic of a statistic"),
        ({"cell_methods": "time: mean", "GRIB_stepType": "accum"}, "'time: mean' and GRIB_stepType 'accum' contradict"),
    ):
        with pytest.raises(InputError, match=sentence):
            process(**attributes)


def test_statistics_of_an_ensemble_are_refused_and_members_are_not():
    for attributes, coordinates, sentence in (
        ({"GRIB_dataType": "em"}, (), r"it is an ensemble mean \(GRIB_dataType 'em'\), no member of an ensemble and"),
        ({"GRIB_dataType": "es"}, (), "it is an ensemble standard deviation"),
        ({"GRIB_dataType": "ep"}, (), "it is a probability"),
        ({"standard_name": "air_temperature standard_error"}, (), "standard_name 'air_temperature standard_error'"),
        ({}, ("time", "percentile"), "it has the coordinate percentile"),
    ):
        with pytest.raises(InputError, match=sentence):
            refuse_statistics(attributes, coordinates)
        for kind in ("pf", "cf", "fc", "an", ""):
            member = {"GRIB_dataType": kind, "standard_name": "air_temperature"}
            refuse_statistics(member, ("time", "number", "latitude"))


# GRIB shortName and units of a variable


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
