"""The table of known GRIB parameters: units, names in files and in reports, physical bounds, processing over time.

`data_pipeline.task.Variable` and `data_pipeline.formats.cf` read this table. A variable that is not in the table can be
used too, with the units and the name in its file.
"""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

Bounds = tuple[float | None, float | None]

UNBOUNDED: Bounds = (None, None)
NON_NEGATIVE: Bounds = (0.0, None)
FRACTION: Bounds = (0.0, 1.0)


class Law(NamedTuple):
    """The family of distributions that a variable's forecasts have, and the power of the variable that has it.

    `family` is one of `models.distribution.FAMILIES`. With `power` 1/2 the roots of the variable follow the family.
    """

    family: str = "normal"
    power: float = 1.0


NORMAL = Law()
AMOUNT = Law("censored_logistic", 0.5)
"""For amounts that are often zero and have a long tail: the roots of rain at Innsbruck have the best score so."""
POSITIVE = Law("censored_normal")
"""For values that come near zero without a long tail, such as wind speed. Wind speed at Dillingen has the same score
with the truncated normal distribution of Thorarinsdottir & Gneiting 2010 (doi:10.1111/j.1467-985X.2009.00616.x)."""

Process = Literal["instant", "mean", "accumulation", "maximum", "minimum"]
"""Statistical processing over a time interval; `instant` fields have none."""


class Display(NamedTuple):
    """Units for tables and figures, and the factor that converts the table's units to them."""

    units: str
    factor: float = 1.0


class Parameter(NamedTuple):
    """One GRIB parameter; `units` and `long_name` are those of ecCodes.

    `spellings` are other names in NetCDF files, `standard_names` the names in the CF conventions, separated by spaces.
    `title` is the name in tables for readers. `has_levels` is true if the parameter may lie on pressure levels, false
    if it always lies at the surface. `bounds` are the physical minimum and maximum. `sea_only` is true if the field is
    missing, or constant, on land. `process` is the processing over time that the shortName implies, and `hours` the
    interval if the shortName implies one. `water` marks an amount of water, for which 1 kg m⁻² is 1 mm. Values up to
    `trace`, such as 0.1 mm of rain, count as zero, as in ECMWF's extreme forecast index. `law` is the distribution that
    models fit unless their options say otherwise.
    """

    units: str
    long_name: str
    spellings: str = ""
    standard_names: str = ""
    title: str = ""
    has_levels: bool = False
    bounds: Bounds = UNBOUNDED
    sea_only: bool = False
    process: Process = "instant"
    hours: int = 0
    water: bool = False
    trace: float = -math.inf
    law: Law = NORMAL
    aloft: tuple[str, ...] = ()
    """Other shortNames of the same quantity, which are not tied to this height."""
    height: int = 0
    """The height (m) above the ground at which a field with one of these shortNames is this parameter."""

    @property
    def printed_units(self) -> str:
        """Units as they are printed.

        >>> PARAMETERS["z"].printed_units, PARAMETERS["tcc"].printed_units
        ('m² s⁻²', '1')
        """
        powers = re.sub(r"\*\*(-?\d)", lambda power: power[1].translate(_SUPERSCRIPTS), self.units)
        return powers.replace("(0 - 1)", "1").replace(" of water equivalent", "")

    @property
    def display(self) -> Display:
        """Units in tables and figures: mm for a depth of water, else the parameter's units.

        >>> PARAMETERS["tp"].display, PARAMETERS["2t"].display
        (Display(units='mm', factor=1000.0), Display(units='K', factor=1.0))
        """
        if self.water and self.printed_units == "m":
            return Display("mm", 1000.0)
        return Display(self.printed_units)


_SUPERSCRIPTS = str.maketrans("-12", "⁻¹²")

_BOUNDS = {"": UNBOUNDED, "0 or more": NON_NEGATIVE, "0 to 1": FRACTION}
_LAWS = {"": NORMAL, "amount": AMOUNT, "positive": POSITIVE}


MODEL_LEVEL = re.compile(r"_ml(\d+)$")
"""The end of the name of a variable on a model level: `t_ml60` is temperature on model level 60."""


class _Table(dict[str, Parameter]):
    """Parameters by shortName; on a model level, `t_ml60` is `t`."""

    def __missing__(self, name: str) -> Parameter:
        if (own := MODEL_LEVEL.sub("", name)) == name:
            raise KeyError(name)
        return self[own]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(MODEL_LEVEL.sub("", name) if isinstance(name, str) else name)

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(MODEL_LEVEL.sub("", name), default)


def _read_table() -> _Table:
    """Return the rows of `parameters.csv`; `marks` are the words levels, sea and water."""
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8") as file:
        return _Table(
            (
                row["name"],
                Parameter(
                    row["units"],
                    row["long_name"],
                    row["spellings"],
                    row["standard_names"],
                    row["title"],
                    has_levels="levels" in row["marks"],
                    bounds=_BOUNDS[row["bounds"]],
                    sea_only="sea" in row["marks"],
                    process=cast(Process, row["process"] or "instant"),
                    hours=int(row["hours"] or 0),
                    water="water" in row["marks"],
                    trace=float(row["trace"] or -math.inf),
                    law=_LAWS[row["law"]],
                    aloft=tuple(row["aloft"].split()[:-1]),
                    height=int(row["aloft"].split()[-1] if row["aloft"] else 0),
                ),
            )
            for row in csv.DictReader(file)
        )


PARAMETERS = _read_table()
"""The known parameters by GRIB shortName, from `parameters.csv` beside this file."""

NEAR_GROUND: dict[tuple[str, float], str] = {
    (aloft, known.height): name for name, known in PARAMETERS.items() for aloft in known.aloft
}
"""shortNames of parameters near the ground, by shortName aloft and height (m): `t` at 2 m is `2t`."""

PLAUSIBLE: dict[str, Bounds] = {
    **dict.fromkeys(("2t", "mx2t", "mn2t", "mx2t3", "mn2t3", "mx2t6", "mn2t6"), (180.0, 335.0)),
    **dict.fromkeys(("u", "v", "10u", "10v", "100u", "100v", "200u", "200v"), (-200.0, 200.0)),
    **dict.fromkeys(("10si", "100si", "10fg", "i10fg", "10fg3", "10fg6"), (0.0, 200.0)),
    "t": (120.0, 340.0), "skt": (170.0, 360.0), "2d": (150.0, 315.0), "sst": (268.0, 315.0), "swh": (0.0, 40.0),
    "msl": (8.5e4, 1.1e5), "sp": (2.5e4, 1.1e5), "tcwv": (0.0, 150.0), "tcw": (0.0, 150.0),
}  # fmt: skip
"""Ranges beyond all records on Earth, where the physical bounds are wider. The records of air at 2 m are 184 and 330 K,
sea-level pressures 870 and 1085 hPa; a jet stream may reach 130 m s-1."""

VECTOR_COMPONENTS = (
    "u", "v", "10u", "10v", "100u", "100v", "200u", "200v", "u10n", "v10n", "ewss", "nsss", "iews", "inss",
    "lgws", "mgws", "ust", "vst", "viwve", "viwvn", "ocu", "ocv",
)  # fmt: skip
"""Eastward and northward components of winds, stresses, fluxes and currents, which change sign across a pole."""
