"""The attributes `cell_methods`, `GRIB_stepType` and `GRIB_dataType`; examples of the CF conventions, section 7.3."""

import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cell_methods import refuse_statistics, stated_process
from data_pipeline.formats.cf.cf_header import role_of


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
