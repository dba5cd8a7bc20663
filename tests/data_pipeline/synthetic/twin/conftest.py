"""The twin experiment that all tests share, and a GRIB reader independent of the project."""

from functools import partial

import eccodes
import numpy as np
import pytest
from twin_project import messages

from data_pipeline.synthetic.twin import Twin


@pytest.fixture(scope="session")
def tiny(first_project):
    """The twin of `twin_project.py`: eight years, four start dates, five members, the oracle for two years."""
    return Twin(first_project / "data/twin", first_year=2010, dates=4, members=5)


@pytest.fixture(scope="session")
def read_grib():
    """Return a function that reads the fields (H, W) of a GRIB file by (shortName, level, dataDate, step, member).

    They are those of the oracle's years. Further arguments restrict the shortNames and steps.
    """

    def read(file, *wanted):
        fields = {}
        for message in messages(file):
            key = partial(eccodes.codes_get, message)
            day = key("dataDate")
            if day > 20160000 and (not wanted or {key("shortName"), key("step")} <= set(wanted)):
                eccodes.codes_set(message, "missingValue", 1e30)
                member = key("number") if key("type") == "pf" else 0
                values = eccodes.codes_get_values(message).reshape(key("Nj"), key("Ni"))
                place = key("shortName"), key("level"), day, key("step"), member
                fields[place] = np.where(values == 1e30, np.nan, values)
        return fields

    return read
