"""Variable and Channel: the variable of a field, and the channels of a sample. Variables have GRIB shortNames."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.variables.parameters import (
    MODEL_LEVEL,
    NORMAL,
    PARAMETERS,
    PLAUSIBLE,
    UNBOUNDED,
    VECTOR_COMPONENTS,
    Display,
    Law,
    Process,
)

PREFIXES = {"avg_": "mean", "max_": "maximum", "min_": "minimum"}
"""Processing over time by the prefix of ECMWF's shortNames for statistics, such as `avg_2t`."""


@dataclass(frozen=True, order=True)
class Variable:
    """One variable: a GRIB shortName, a pressure level in hPa, and its processing over time.

    `level` is 0 at the surface. `process` is empty if the processing is the one that the shortName implies
    (`Parameter.process`): `2t` is instantaneous, `tp` an accumulation. `period` is the length in hours of the interval
    that ends at the valid time; 0 means the interval in the files. A variable on a model level has it in its name:
    `t_ml60`.
    """

    name: str
    level: int = 0
    period: int = 0
    process: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.name):
            raise InputError(f"{self.name!r} is not a GRIB shortName")
        if not 0 <= self.level <= 1100:
            raise InputError(f"{self.name}@{self.level}: a pressure level must be between 1 and 1100 hPa")
        if self.process == own_process(self.name):
            object.__setattr__(self, "process", "")
        check_choice(f"the processing of {self}", self.process or "instant", get_args(Process))
        if self.period < 0 or (self.period and self.processing == "instant"):
            raise InputError(
                f"{self} is instantaneous and has no period; add its processing, such as {self}-mean, or leave it out"
            )

    @classmethod
    def parse(cls, text: str) -> Variable:
        """Parse `2t` (surface), `t@850` (850 hPa), `tp:24h` (24 hours), `2t:24h-mean` or `2t:mean`.

        >>> Variable.parse("t@850"), Variable.parse("2t:24h-mean")
        (Variable(name='t', level=850, period=0, process=''), Variable(name='2t', level=0, period=24, process='mean'))
        """
        found = re.fullmatch(r"([^@:]+)(?:@(\d+))?(?::(?=.)(?:(\d+)h)?(?:(?(3)-)([a-z]+))?)?", str(text))
        if not found:
            raise InputError(
                f"cannot read the variable {text!r}; write a shortName such as 2t, t@850 for 850 hPa, tp:24h for 24 "
                "hours, or 2t:24h-mean for a mean of 24 hours"
            )
        name, level, period, process = found.groups()
        return cls(name, int(level or 0), int(period or 0), process or "")

    @property
    def model_level(self) -> int:
        """The number of the model level, 0 for any other level.

        >>> Variable("t_ml60").model_level, Variable("t_ml60").units
        (60, 'K')
        """
        return int(found[1]) if (found := MODEL_LEVEL.search(self.name)) else 0

    @property
    def parameter(self) -> str:
        """The shortName without a model level: `t` for `t_ml60`."""
        return MODEL_LEVEL.sub("", self.name)

    @property
    def component(self) -> bool:
        """Whether the field is an eastward or northward component of a vector."""
        return self.parameter in VECTOR_COMPONENTS

    @property
    def processing(self) -> str:
        """Processing over time, one of `parameters.Process`."""
        return self.process or own_process(self.name)

    @property
    def label(self) -> str:
        """Name in data sets, without the level: `t`, `tp_24h`, `2t_24h_mean`."""
        return "_".join(filter(None, (self.name, f"{self.period}h" if self.period else "", self.process)))

    @property
    def units(self) -> str:
        """Units as stored in GRIB; an empty string if the variable is not in `parameters.PARAMETERS`."""
        return PARAMETERS[self.name].printed_units if self.name in PARAMETERS else ""

    @property
    def display(self) -> Display:
        """Units in tables and figures; without units if the variable is not in `parameters.PARAMETERS`."""
        return PARAMETERS[self.name].display if self.name in PARAMETERS else Display("")

    @property
    def title(self) -> str:
        """Name in tables for readers, such as `temperature`; the shortName if the variable is not in the table."""
        return (self.name in PARAMETERS and PARAMETERS[self.name].title) or self.name

    @property
    def sea_only(self) -> bool:
        """Whether the field is missing on land, so that its mask is a land-sea mask."""
        return self.name in PARAMETERS and PARAMETERS[self.name].sea_only

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Physical minimum and maximum; None where there is none."""
        return PARAMETERS[self.name].bounds if self.name in PARAMETERS else UNBOUNDED

    @property
    def plausible(self) -> tuple[float, float]:
        """Least and largest plausible value, from records on Earth; infinite where there is none.

        The largest amount of water in h hours is 0.491 h^0.452 m, which envelops the records from minutes to months.

        >>> Variable("2t").plausible, Variable.parse("tp:1h").plausible
        ((180.0, 335.0), (0.0, 0.491))
        """
        low, high = PLAUSIBLE.get(self.parameter, self.bounds)
        if (
            high is None
            and self.name in PARAMETERS
            and PARAMETERS[self.name].water
            and self.processing == "accumulation"
        ):
            high = 0.491 * (self.period or 31 * 24) ** 0.452
        return -math.inf if low is None else low, math.inf if high is None else high

    @property
    def censored(self) -> bool:
        """Whether values may stay at a limit, such as 0 mm, the reach of an instrument or the freezing of the sea."""
        return self.near_bound or self.sea_only or self.name not in PARAMETERS

    @property
    def trace(self) -> float:
        """The limit up to which values count as zero, such as 0.1 mm of rain; -inf if every value counts."""
        return PARAMETERS[self.name].trace if self.name in PARAMETERS else -math.inf

    @property
    def law(self) -> Law:
        """The distribution of the variable that models fit; normal if it is not in `parameters.PARAMETERS`."""
        return PARAMETERS[self.name].law if self.name in PARAMETERS else NORMAL

    @property
    def near_bound(self) -> bool:
        """Whether values come near a physical bound, such as 0 mm of rain; no temperature comes near 0 K."""
        return self.bounds != UNBOUNDED and self.units != "K"

    @property
    def parity(self) -> int:
        """The factor on the values across a pole: -1 if they change sign there, else 1.

        The directions of east and north reverse at a pole: a wind straight across it blows from the north on one side
        and from the south on the other.
        """
        return -1 if self.component else 1

    def __str__(self) -> str:
        over = "-".join(filter(None, (f"{self.period}h" if self.period else "", self.process)))
        return self.name + (f"@{self.level}" if self.level else "") + (f":{over}" if over else "")


def own_process(name: str) -> str:
    """Return the processing over time that a shortName implies.

    >>> own_process("2t"), own_process("tp"), own_process("avg_2t")
    ('instant', 'accumulation', 'mean')
    """
    if name in PARAMETERS:
        return PARAMETERS[name].process
    return PREFIXES.get(name[:4], "instant")


Origin = Literal["lead", "start", "before", "analysis"]


@dataclass(frozen=True)
class Channel:
    """One channel of a sample: a variable of the forecast at a lead time, or of the analysis at the start.

    `origin` defines `hours`:

    - `lead`: the forecast at the sample's lead time, `t@850`;
    - `start`: the same forecast at the lead time `hours`, `t@850+24h`;
    - `before`: the same forecast `hours` before the sample's lead time, `t@850-24h`;
    - `analysis`: the analysis at the start of the forecast, `t@850 analysis`.
    """

    variable: Variable
    origin: Origin = "lead"
    hours: int = 0

    @classmethod
    def other_lead(cls, text: str) -> Channel:
        """Parse `t@850+24h` (lead time 24 h) or `t@850-24h` (24 h before the sample's lead time).

        >>> Channel.other_lead("t@850+0h")
        Channel(variable=Variable(name='t', level=850, period=0, process=''), origin='start', hours=0)
        """
        found = re.fullmatch(r"(.+)([+-])(\d+)h", str(text))
        if not found or (found[2] == "-" and int(found[3]) == 0):
            raise InputError(
                f"cannot read {text!r} in other_leads; write t@850+24h for t@850 at the lead time 24 h, "
                "or t@850-24h for 24 h before the lead time of the target"
            )
        return cls(Variable.parse(found[1]), "start" if found[2] == "+" else "before", int(found[3]))

    def lead_time(self, lead_time: int) -> int:
        """Return the lead time of the field for a sample with `lead_time` (hours)."""
        return {"lead": lead_time, "start": self.hours, "before": lead_time - self.hours}[self.origin]

    def __str__(self) -> str:
        endings = {"lead": "", "start": f"+{self.hours}h", "before": f"-{self.hours}h", "analysis": " analysis"}
        return f"{self.variable}{endings[self.origin]}"
