"""Names that state more than the shortName: the units of a variable that has none, the interval of an amount."""

import numpy as np
import pytest
from netcdf_parts import START, VALID, variables

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import analysis_fields, ensemble_fields

MILLIMETRES = np.random.default_rng(3).gamma(0.4, 5.0, (2, 4, 6)).astype(np.float32)
DIMENSIONS = ("time", "lat", "lon")
STATED = {"rain": "tp:24h in mm"}


def read(fields):
    out = np.empty((len(fields.numbers), len(fields.variables), *fields.grid.shape))
    fields.read(0, 0, out)
    return out[0, 0]


def test_stated_units_and_intervals_are_used(file):
    path = file({"time": VALID}, {"rain": (DIMENSIONS, MILLIMETRES, {})})
    fields = analysis_fields(path, variables("tp:24h"), names=STATED)
    np.testing.assert_allclose(read(fields), MILLIMETRES[0] / 1000, rtol=1e-6)
    assert fields.meanings[0].intervals == (1440,)


def test_a_forecast_before_the_end_of_its_interval_has_none(file):
    """At 24 h the interval of 48 hours would begin before the start."""
    path = file({"time": VALID, "start": START}, {"rain": (DIMENSIONS, MILLIMETRES, {})})
    names = {"rain": "tp:24h in mm"}
    np.testing.assert_allclose(
        read(ensemble_fields(path, variables("tp:24h"), [24], names=names)), MILLIMETRES[1] / 1000, rtol=1e-6
    )
    with pytest.raises(InputError, match="tp"):
        ensemble_fields(path, variables("tp:48h"), [24], names={"rain": "tp:48h in mm"})


def test_units_of_the_file_must_agree(file):
    path = file({"time": VALID}, {"rain": (DIMENSIONS, MILLIMETRES, {"units": "m"})})
    with pytest.raises(InputError, match=r"\(rain\) is in 'm', not in mm as data.archive.variable_names says; leave"):
        analysis_fields(path, variables("tp:24h"), names=STATED)
    fields = analysis_fields(path, variables("tp:24h"), names={"rain": "tp:24h in metres"})
    np.testing.assert_allclose(read(fields), MILLIMETRES[0], rtol=1e-6)


def test_bounds_of_the_file_must_agree(file):
    ends = np.array(VALID[1])
    time = (("time",), ends, {**VALID[2], "bounds": "cells"})
    cells = (("time", "side"), np.stack([ends - 6, ends], 1), {})
    path = file({"time": time}, {"rain": (DIMENSIONS, MILLIMETRES, {"cell_methods": "time: sum"}), "cells": cells})
    with pytest.raises(InputError, match=r"\(rain\) covers 6 h according to the bounds of its times, not 24 h; write"):
        analysis_fields(path, variables("tp:24h"), names=STATED)
    read(analysis_fields(path, variables("tp:6h"), names={"rain": "tp:6h in mm"}))


def test_two_variables_with_one_name_are_refused(file):
    fields = {name: (DIMENSIONS, MILLIMETRES, {"units": "K"}) for name in ("MY_T2", "t2m")}
    path = file({"time": VALID}, fields)
    with pytest.raises(InputError, match=r"MY_T2 and t2m could both be 2t; .*variable_names={t2m: other}"):
        analysis_fields(path, variables("2t"), names={"MY_T2": "2t"})
    fields = analysis_fields(path, variables("2t"), names={"MY_T2": "2t", "t2m": "skt"})
    np.testing.assert_array_equal(read(fields), MILLIMETRES[0])
