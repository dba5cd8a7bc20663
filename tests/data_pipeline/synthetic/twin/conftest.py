"""A tiny twin experiment, prepared once, and a GRIB reader independent of the project."""

from collections.abc import Callable
from pathlib import Path

import eccodes
import numpy as np
import pytest

from data_pipeline.synthetic.twin import Twin


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    """Three years, four start dates, four members, the oracle for all years."""
    twin = Twin(
        tmp_path_factory.mktemp("twin"),
        first_year=2015,
        dates=4,
        members=4,
        oracle_years=(2015, 2016, 2017),
        workers=2,
    )
    twin.prepare()
    return twin


@pytest.fixture(scope="session")
def read_grib() -> Callable[[Path], dict]:
    """Return a function that reads the fields (H, W) of a GRIB file by (shortName, level, dataDate, step, member).

    Further arguments restrict the shortNames and steps.
    """

    def read(file: Path, *wanted: object) -> dict:
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
