"""Kind: the properties that messages of one variable on one level and one grid share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import eccodes

from data_pipeline.formats.catalog import Summary
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.interval import Processing, processing_of
from data_pipeline.formats.grib.keys import get_text
from data_pipeline.formats.grib.product import product_of
from data_pipeline.task import Variable
from data_pipeline.variables.parameters import Process

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
        forecasts, members or analyses. Only pressure levels are distinguished. On other levels each short name is one
        variable, such as `2t` or `stl1`; for a name such as `t`, `formats.levels` distinguishes the levels.
        """
        return None if self.product or not _is_name(self.short_name) else self.named(Variable(self.short_name))

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
            return Variable(name.name, name.level, process=process)
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


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_]+", text) is not None
