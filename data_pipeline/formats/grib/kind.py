"""Kind: the properties that messages of one variable on one level and one grid share, and what the messages hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

import eccodes

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import Summary
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.interval import Processing, processing_of
from data_pipeline.formats.grib.keys import get_text, get_whole
from data_pipeline.formats.levels import on_model_level
from data_pipeline.task import Variable, own_process
from data_pipeline.variables.parameters import NEAR_GROUND, PARAMETERS, Process
from data_pipeline.variables.units import Conversion, find_conversion

_SUMMARIES: dict[str, Summary] = {"ensemble mean": "mean", "ensemble spread": "std"}


@dataclass(frozen=True)
class Kind:
    """Properties of messages; `process` is the processing over time, `version` ECMWF's expver.

    `product` names a statistic, such as an ensemble mean or a probability. It is empty for forecasts, members and
    analyses, which can be read. `level` is the top of a layer, `bottom` its bottom.
    """

    short_name: str
    parameter: int
    long_name: str
    units: str
    process: str
    product: str
    type_of_level: str
    level: float
    data_type: str
    version: str
    layout: Layout
    bottom: float | None = None

    @classmethod
    def of(cls, handle: int, parameter: tuple[int, str, str, str]) -> tuple[Kind, Processing]:
        """Return the kind of an ecCodes message, and its processing; `parameter` is the result of `parameter_of`."""
        number, short_name, long_name, units = parameter
        processing = processing_of(handle, short_name)
        type_of_level = eccodes.codes_get_string(handle, "typeOfLevel")
        kind = cls(
            short_name, number, long_name, units, processing.process, product_of(handle),
            type_of_level=type_of_level,
            level=_level(handle, "level"),
            data_type=get_text(handle, "dataType"),
            version=get_text(handle, "expver"),
            layout=Layout.of(handle),
            bottom=_level(handle, "bottomLevel") if type_of_level.endswith("Layer") else None,
        )  # fmt: skip
        return kind, processing

    @cached_property
    def variable(self) -> Variable | None:
        """The variable; None if the messages cannot be read as one.

        Such messages have no short name, lie on a pressure level that is not a whole number of hPa, or are not
        forecasts, members or analyses. Pressure levels and model levels are distinguished. On other levels each short
        name is one variable, such as `2t` or `stl1`; for a name such as `t`, `formats.levels` distinguishes the levels.
        `t` at a height of 2 m is `2t`, as some centres write it (`parameters.NEAR_GROUND`).
        """
        if self.product or not re.fullmatch(r"[A-Za-z0-9_]+", self.short_name):
            return None
        near = NEAR_GROUND.get((self.short_name, self.level)) if self.type_of_level == "heightAboveGround" else None
        if near and own_process(near) in ("instant", self.process):
            return self.named(Variable(near))
        return self.named(Variable(self.short_name))

    def named(self, name: Variable) -> Variable | None:
        """Return the variable of messages that the user calls `name`; None if they cannot be read as a variable.

        Its level is the level of `name` if it has one, else the level of the messages.
        """
        units = {"isobaricInhPa": 1, "isobaricInPa": 100}.get(self.type_of_level)
        if self.product or self.process not in get_args(Process):
            return None
        process = self.process
        if process == "instant":  # the file states no processing, so the name decides
            process = name.process
        if units is None or name.level:
            own = name.name if name.level else on_model_level(name.name, self.type_of_level, self.level)
            return Variable(own, name.level, process=process)
        level, rest = divmod(self.level, units)
        whole = 1 <= level <= 1100 and not rest
        return Variable(name.name, int(level), process=process) if whole else None

    @property
    def left_out(self) -> str:
        """What the messages hold if they are left out, such as `ensemble mean of 2t`; otherwise an empty text."""
        words = self.product or ("" if self.process in get_args(Process) else self.process)
        return words and f"{words} of {self.short_name}"

    @property
    def summary(self) -> Summary:
        """`mean` or `std` for the mean and the standard deviation of an ensemble; empty for all other messages."""
        return _SUMMARIES.get(self.product, "")

    def __str__(self) -> str:
        if self.variable:
            return str(self.variable)
        return f"{self.left_out or self.short_name} ({self.type_of_level} {self.level:g})"


def parameter_of(handle: int) -> tuple[int, str, str, str]:
    """Return the paramId, short name, long name and units of a message; ecCodes takes milliseconds for each."""
    short, name, units = (eccodes.codes_get_string(handle, key) for key in ("shortName", "name", "units"))
    return eccodes.codes_get_long(handle, "paramId"), short, name, units


def _level(handle: int, key: str) -> float:
    try:
        return eccodes.codes_get_double(handle, key)
    except eccodes.KeyValueNotFoundError:
        return 0.0


ENSEMBLE_TEMPLATES = (2, 3, 4, 12, 13, 14, 199, 200)
"""GRIB2 product templates of statistics of an ensemble; the key `derivedForecast` says which statistic."""
OTHER_TEMPLATES = {
    5: "probability", 9: "probability", 6: "quantile", 10: "quantile", 86: "quantile", 87: "quantile",
    7: "error", 51: "category", 91: "category",
    89: "quantile", 90: "quantile", 201: "probability", 202: "probability",
}  # fmt: skip
"""GRIB2 product templates of other statistics."""
COMPARISON_TEMPLATES = (105, 106, 107, 112, *range(128, 137))
"""GRIB2 product templates of comparisons with a reference period, by `typeOfRelationToReferenceDataset`."""
COMPARISONS = {0: "anomaly", 1: "standardized anomaly", 20: "extreme forecast index", 21: "shift of tail"}
"""Comparisons by this key (GRIB2 code table 4.101)."""
ENSEMBLE_STATISTICS = (
    "ensemble mean", "ensemble mean", "ensemble spread", "ensemble spread", "ensemble spread", "anomaly index",
    "cluster mean", "interquartile range", "ensemble minimum", "ensemble maximum",
)  # fmt: skip
"""Statistics by the value of `derivedForecast` (GRIB2 code table 4.7)."""

MARS_TYPES = {
    "em": "ensemble mean", "wem": "ensemble mean", "taem": "ensemble mean", "es": "ensemble spread",
    "wes": "ensemble spread", "ses": "ensemble spread", "taes": "ensemble spread", "cm": "cluster mean",
    "cs": "cluster spread", "cr": "cluster representative", "ep": "probability", "fp": "probability",
    "pb": "quantile", "pd": "quantile", "cd": "climate quantile", "efi": "extreme forecast index",
    "efic": "extreme forecast index", "sot": "shift of tail", "hcmean": "climate mean", "cl": "climatology",
    "ef": "error", "ea": "error", "me": "error", "eme": "error", "3g": "gradient", "4g": "gradient",
    "4i": "increment", "tu": "tube", "ci": "cluster information", "ed": "empirical distribution",
    "svar": "signal variance",
}  # fmt: skip
"""Types of MARS (`mars/type.table` of ecCodes) that are not a forecast, member or analysis."""

NCEP_FULL_FIELD = 1
NCEP_MEANS = (2, 3)
"""Values of `productIdentifier` in NCEP's local part of GRIB1 messages."""


def product_of(handle: int) -> str:
    """Return the name of the statistic that a message holds; empty for a forecast, a member or an analysis.

    Statistics, such as an ensemble mean, a spread, a probability or a quantile, are not members of the ensemble.
    """
    if get_whole(handle, "edition", 0) == 2:
        template = get_whole(handle, "productDefinitionTemplateNumber", 0)
        if template in ENSEMBLE_TEMPLATES:
            kind = get_whole(handle, "derivedForecast", 255)
            return ENSEMBLE_STATISTICS[kind] if kind < len(ENSEMBLE_STATISTICS) else "ensemble statistic"
        if template in OTHER_TEMPLATES:
            return OTHER_TEMPLATES[template]
        if template in COMPARISON_TEMPLATES:
            return COMPARISONS.get(get_whole(handle, "typeOfRelationToReferenceDataset", 255), "relation to a climate")
    elif (field := get_whole(handle, "productIdentifier", NCEP_FULL_FIELD)) != NCEP_FULL_FIELD:
        return "ensemble mean" if field in NCEP_MEANS else "ensemble statistic"
    return MARS_TYPES.get(get_text(handle, "dataType", ""), "")


MAX_NAMED = 4
"""Most kinds of message that are named; the others are only counted."""


def describe_left_out(counts: Mapping[Kind, int]) -> str:
    """Return a text with the number of messages for each `Kind.left_out`, the most frequent first; empty for none."""
    sums = Counter[str]()
    for kind, count in counts.items():
        sums[kind.left_out] += count
    shown = [f"{count:,} x {text}" for text, count in sums.most_common(MAX_NAMED)]
    return ", ".join(shown) + (f" and {len(sums) - MAX_NAMED} others" if len(sums) > MAX_NAMED else "")


UNKNOWN_UNITS = ("unknown", "")
"""Units that ecCodes gives to unknown parameters; if the user names one, its values must be in GRIB's units."""


def wanted_units(kind: Kind, name: str) -> str:
    """Return the units in which a variable called `name` is read; `kind` is the first kind of message that has it."""
    return PARAMETERS[name].units if name in PARAMETERS else kind.units


def find_conversions(
    kinds: Sequence[Kind], variables: Sequence[Variable | None], files: Sequence[Path]
) -> Iterator[Conversion]:
    """Yield the conversion of each kind's values; values of a kind without a variable are not converted.

    `files` holds the first file of each kind, for error messages. A variable that is not in `PARAMETERS` gets the units
    of its first kind. Units that cannot be converted raise `InputError`.
    """
    first: dict[str, int] = {}
    for k, (kind, variable) in enumerate(zip(kinds, variables, strict=True)):
        if variable is None:
            yield Conversion()
            continue
        one = first.setdefault(variable.name, k)
        wanted = wanted_units(kinds[one], variable.name)
        found = conversion_of(kind, variable, wanted)
        if found is None:
            other = "GRIB's table" if variable.name in PARAMETERS else str(files[one])
            raise InputError(
                f"{files[k]} has {variable} in {kind.units}, {other} in {wanted}, and there is no conversion between "
                "these units; leave out the file, or write its values in the other units, for instance with cdo"
            )
        yield found


def conversion_of(kind: Kind, variable: Variable, wanted: str) -> Conversion | None:
    """Return the conversion of a kind's values to the units `wanted`; None if there is none."""
    if kind.units == wanted or kind.units in UNKNOWN_UNITS:
        return Conversion()
    water = variable.name in PARAMETERS and PARAMETERS[variable.name].water
    height = "geopotential_height" if kind.short_name == "gh" else ""
    return find_conversion(kind.units, wanted, water=water, standard_name=height)
