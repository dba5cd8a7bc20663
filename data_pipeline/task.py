"""Task: the predicted variables (targets), the inputs and the lead times. Variables have GRIB shortNames."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.parameters import PARAMETERS, UNBOUNDED, VECTOR_COMPONENTS, Display, Process

POSITION = ("sin_latitude", "cos_latitude_cos_longitude", "cos_latitude_sin_longitude")
"""Static fields that are computed from the grid: the position on the unit sphere."""


PREFIXES = {"avg_": "mean", "max_": "maximum", "min_": "minimum"}
"""Processing over time by the beginning of ECMWF's shortNames for statistics, such as `avg_2t`."""


@dataclass(frozen=True, order=True)
class Variable:
    """One variable: a GRIB shortName, a pressure level in hPa, and its processing over time.

    `level` is 0 at the surface. `process` is empty if it is the parameter's own (`Parameter.process`): `2t` is
    instantaneous, `tp` an accumulation. `period` is the length in hours of the interval that ends at the valid time; 0
    stands for the interval that the files have.
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
    def near_bound(self) -> bool:
        """Whether values come near a physical bound, such as 0 mm of rain; no temperature comes near 0 K."""
        return self.bounds != UNBOUNDED and self.units != "K"

    @property
    def parity(self) -> int:
        """-1 if the values change sign across a pole, else 1.

        The directions of east and north reverse at a pole: a wind straight across it blows from the north on one side
        and from the south on the other.
        """
        return -1 if self.name in VECTOR_COMPONENTS else 1

    def __str__(self) -> str:
        over = "-".join(filter(None, (f"{self.period}h" if self.period else "", self.process)))
        return self.name + (f"@{self.level}" if self.level else "") + (f":{over}" if over else "")


def own_process(name: str) -> str:
    """Return the processing over time that the parameter's name alone stands for.

    >>> own_process("2t"), own_process("tp"), own_process("avg_2t")
    ('instant', 'accumulation', 'mean')
    """
    if name in PARAMETERS:
        return PARAMETERS[name].process
    return PREFIXES.get(name[:4], "instant")


Origin = Literal["lead", "start", "before", "analysis"]


@dataclass(frozen=True)
class Channel:
    """One channel of a sample: a variable of the forecast at a lead time, or of the analysis at its start.

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


class HasChannels:
    """Base class of a task and of a store's plan, which list their channels alike."""

    inputs: tuple[Variable, ...]
    other_leads: tuple[Channel, ...]
    analysis: tuple[Variable, ...]

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All channels in the order of `Sample.ensemble`: `inputs`, `other_leads`, `analysis`."""
        return tuple(map(Channel, self.inputs)) + self.further

    @property
    def further(self) -> tuple[Channel, ...]:
        """The channels at other lead times and of the analysis."""
        return self.other_leads + tuple(Channel(variable, "analysis") for variable in self.analysis)


@dataclass(frozen=True)
class Task(HasChannels):
    """Correct the `targets` at `lead_times` (hours) from the ensemble of the `inputs`.

    Every target must be an input, because models correct the raw ensemble. `static` are static fields (`lsm`, `z` of
    the surface) in addition to the position, which is always included. `other_leads` are fields of the same forecast at
    other lead times, in the format of `Channel.other_lead`. `analysis` are variables of the analysis at the start.
    `thresholds` are events that `evaluate` scores, as text such as `> 0 degC`; data and models do not depend on
    them, so that tasks with other thresholds are equal.
    """

    name: str
    inputs: tuple[Variable, ...]
    targets: tuple[Variable, ...]
    lead_times: tuple[int, ...]
    static: tuple[str, ...] = ()
    other_leads: tuple[Channel, ...] = ()
    analysis: tuple[Variable, ...] = ()
    thresholds: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "thresholds", tuple(str(text) for text in _listed("thresholds", self.thresholds)))
        for name in ("inputs", "targets"):
            values = tuple(
                v if isinstance(v, Variable) else Variable.parse(v) for v in _listed(name, getattr(self, name))
            )
            object.__setattr__(self, name, values)
            if not values or len(set(values)) < len(values):
                raise InputError(
                    f"task {self.name}: {name} must be different variables, at least one, got {_join(values)}"
                )
        if missing := [v for v in self.targets if v not in self.inputs]:
            raise InputError(
                f"task {self.name}: add the target {_join(missing)} to the inputs; models correct its ensemble"
            )
        leads = tuple(_listed("lead_times", self.lead_times))
        if not leads or any(type(lead) is not int or lead < 0 for lead in leads) or list(leads) != sorted(set(leads)):
            raise InputError(f"task {self.name}: lead_times must be increasing whole hours, got {list(leads)}")
        object.__setattr__(self, "lead_times", leads)
        object.__setattr__(self, "static", tuple(str(name) for name in _listed("static", self.static)))
        others = tuple(
            v if isinstance(v, Channel) else Channel.other_lead(v) for v in _listed("other_leads", self.other_leads)
        )
        object.__setattr__(self, "other_leads", others)
        analysis = tuple(
            v if isinstance(v, Variable) else Variable.parse(v) for v in _listed("analysis", self.analysis)
        )
        object.__setattr__(self, "analysis", analysis)
        for name, found in (("other_leads", others), ("analysis", analysis)):
            if len(set(found)) < len(found):
                raise InputError(f"task {self.name}: {name} must be different variables, got {_join(found)}")
        for variable in self.inputs:
            if variable.period > leads[0]:
                raise InputError(
                    f"task {self.name}: {variable} begins before the start of a forecast of {leads[0]} h; remove that "
                    "lead time, or choose a shorter period"
                )
        for channel in others:
            if channel.lead_time(leads[0]) < 0:
                raise InputError(
                    f"task {self.name}: {channel} is before the start of a forecast of {leads[0]} h; "
                    "remove it, or that lead time"
                )

    @property
    def target_channels(self) -> tuple[int, ...]:
        """Index of each target among the inputs, which is also its index among the channels."""
        return tuple(self.inputs.index(target) for target in self.targets)

    @property
    def parity(self) -> tuple[int, ...]:
        """`Variable.parity` of each channel."""
        return tuple(channel.variable.parity for channel in self.channels)

    @property
    def static_names(self) -> tuple[str, ...]:
        """All static channels in the order of `Sample.static`."""
        return POSITION + self.static

    def only_targets(self) -> Task:
        """Return the same task with only the targets as inputs."""
        return replace(self, inputs=self.targets, static=(), other_leads=(), analysis=())

    def to_json(self) -> dict:
        """Return plain values; `Task(**values)` is an equal task."""
        values = {
            "name": self.name, "inputs": [str(v) for v in self.inputs], "targets": [str(v) for v in self.targets],
            "lead_times": list(self.lead_times), "static": list(self.static),
        }  # fmt: skip
        # Tasks without these fields keep the text of earlier versions, because files are compared by it.
        further = {"other_leads": self.other_leads, "analysis": self.analysis}
        return values | {name: [str(v) for v in found] for name, found in further.items() if found}


def _listed(name: str, values: object) -> Iterable:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name} must be a list, got {values!r}")
    return values


def _join(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "none"
