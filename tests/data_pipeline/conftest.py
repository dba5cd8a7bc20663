"""GRIB files for tests of formats and writers, and keys and values of any GRIB file read by ecCodes alone."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import eccodes
import numpy as np
import pytest
from twin_project import messages

from data_pipeline.grid import Grid
from data_pipeline.task import Variable
from data_pipeline.writing import Encoder

GRID = Grid.regular(5, 8)
NAMESPACES = ("ls", "mars", "time", "geography", "parameter", "vertical")
ENS10 = {
    "centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 26, "class": "od", "type": "pf",
    "stream": "enfh", "expver": "0001", "referenceDate": 20180104, "numberOfForecastsInEnsemble": 11,
    "dataTime": 0, "stepUnits": "h",
}  # fmt: skip
"""The keys that all messages of an ENS-10 file share."""


class Writer:
    """Writes forecasts like ENS-10; `value` returns the values of a field."""

    grid = GRID
    keys = ENS10

    @staticmethod
    def value(variable: Variable, year: int, lead: int, number: int) -> np.ndarray:
        """Return a field that belongs to this message only, (H, W)."""
        entropy = [*variable.name.encode(), variable.level, year, lead, number]
        return 250 + 10 * np.random.default_rng(entropy).standard_normal(GRID.shape)

    def forecast(
        self,
        path: Path,
        variables: Sequence[str] = ("2t",),
        years: Sequence[int] = (1998, 1999),
        leads: Sequence[int] = (0, 24, 48),
        numbers: Sequence[int] = (1, 2, 3),
        without: Sequence[tuple] = (),
        **keys: object,
    ) -> Path:
        """Write one file; `without` lists (variable, year, lead, number) that are left out."""
        encoder = Encoder(self.grid, **{**self.keys, **keys})
        with path.open("wb") as file:
            for name, year, lead, number in product(variables, years, leads, numbers):
                if (name, year, lead, number) not in without:
                    variable = Variable.parse(name)
                    file.write(
                        encoder.encode(
                            self.value(variable, year, lead, number), **place(variable),
                            dataDate=year * 10000 + 104, endStep=lead, perturbationNumber=number,
                        )
                    )  # fmt: skip
        return path

    def rain(self, path: Path, **keys: object) -> Path:
        """Write forecasts of precipitation with the numbers of kg m-2, where `forecast` states metres."""
        content = bytearray(self.forecast(path, ("tp",), **keys).read_bytes())
        length = int.from_bytes(content[4:7], "big")
        for start in range(0, len(content), length):
            content[start + 11], content[start + 16] = 228, 228  # table and number of the parameter
        path.write_bytes(content)
        return path


def place(variable: Variable) -> Mapping[str, object]:
    """Return the keys of a variable and its level."""
    level = "isobaricInhPa" if variable.level else "surface"
    return {"shortName": variable.name, "typeOfLevel": level, "level": variable.level}


class Plain:
    """Reads keys and values by ecCodes alone, for comparison."""

    handles = staticmethod(messages)
    """Yields a handle for every message, as ecCodes finds them."""

    @staticmethod
    def get(handle: int, key: str, kind: type | None = None, default: object = None) -> object:
        """Return a key, or `default` where the message does not have it."""
        try:
            return eccodes.codes_get(handle, key, kind)
        except eccodes.KeyValueNotFoundError:
            return default

    @staticmethod
    def keys(handle: int, namespaces: Sequence[str | None] = NAMESPACES) -> dict[str, str]:
        """Return every scalar key of the usual namespaces as text, or every key of all sections with [None]."""
        found = {}
        for namespace in namespaces:
            iterator = eccodes.codes_keys_iterator_new(handle, namespace)
            while eccodes.codes_keys_iterator_next(iterator):
                name = eccodes.codes_keys_iterator_get_name(iterator)
                if eccodes.codes_get_size(handle, name) == 1:
                    found[f"{namespace}.{name}" if namespace else name] = eccodes.codes_get_string(handle, name)
            eccodes.codes_keys_iterator_delete(iterator)
        return found

    @staticmethod
    def values(handle: int) -> np.ndarray:
        """Return the values in the order of the file, NaN where the bitmap marks them as missing."""
        eccodes.codes_set(handle, "missingValue", 1e30)
        values = eccodes.codes_get_values(handle)
        return np.where(values == 1e30, np.nan, values)


@pytest.fixture(scope="session")
def writer() -> Writer:
    """Writes forecast files."""
    return Writer()


@pytest.fixture(scope="session")
def plain() -> Plain:
    """Reads GRIB without the tested code."""
    return Plain()


GRIB_SETS = ("grib_cfgrib_samples", "grib_metview_ens", "grib_earthkit", "grib_gribberish_small")


@pytest.fixture(scope="session")
def real_files(samples: Path) -> list[Path]:
    """All real GRIB files except the damaged one."""
    files = [path for name in GRIB_SETS for path in sorted((samples / name).iterdir())]
    return [path for path in files if path.suffix != ".txt" and "corrupted" not in path.name]
