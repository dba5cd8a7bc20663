"""The twin experiment that all tests share, and a GRIB reader independent of the project."""

import eccodes
import numpy as np
import pytest

from data_pipeline.synthetic.twin import Twin


@pytest.fixture(scope="session")
def tiny(first_project):
    """The twin of `twin_project.py`: eight years, four start dates, five members, the oracle for two years."""
    return Twin(first_project / "data/twin", first_year=2010, dates=4, members=5)


@pytest.fixture(scope="session")
def read_grib():
    """Return a function that reads the fields (H, W) of a GRIB file by (shortName, level, dataDate, step, member).

    Further arguments restrict the shortNames and steps.
    """

    def read(file, *wanted):
        fields = {}
        with file.open("rb") as stream:
            while (message := eccodes.codes_grib_new_from_file(stream)) is not None:
                eccodes.codes_set(message, "missingValue", 1e30)
                name, level, day, step, kind, rows, columns = (
                    eccodes.codes_get(message, key)
                    for key in ("shortName", "level", "dataDate", "step", "type", "Nj", "Ni")
                )
                member = eccodes.codes_get(message, "number") if kind == "pf" else 0
                if wanted and not {name, step} <= set(wanted):
                    eccodes.codes_release(message)
                    continue
                values = eccodes.codes_get_values(message).reshape(rows, columns)
                fields[name, level, day, step, member] = np.where(values == 1e30, np.nan, values)
                eccodes.codes_release(message)
        return fields

    return read
