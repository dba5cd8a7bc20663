"""Task: the predicted variables (targets), the inputs and the lead times. Variables have GRIB shortNames."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from itertools import pairwise

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import joined
from data_pipeline.formulas.formula import (
    GROUP_MEAN,
    GROUP_SPREAD,
    IN_GROUP,
    LAGGED_MEAN,
    LAGGED_SPREAD,
    MEANS_OF_GROUPS,
    Formula,
    within,
)
from data_pipeline.variables.variable import Channel as Channel
from data_pipeline.variables.variable import Variable as Variable
from data_pipeline.variables.variable import own_process as own_process

POSITION = ("sin_latitude", "cos_latitude_cos_longitude", "cos_latitude_sin_longitude")
"""Static fields that are computed from the grid: the position on the unit sphere."""


class HasChannels:
    """Base class of a task and of a store's plan: the list of all channels."""

    inputs: tuple[Variable, ...]
    other_leads: tuple[Channel, ...]
    analysis: tuple[Variable, ...]
    formulas: tuple[Formula, ...]

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All channels in the order of `Sample.ensemble`: `inputs`, `other_leads`, `analysis`, `formulas`."""
        return tuple(map(Channel, self.inputs)) + self.further

    @property
    def further(self) -> tuple[Channel, ...]:
        """The channels at other lead times, of the analysis, and of formulas."""
        analysis = tuple(Channel(variable, "analysis") for variable in self.analysis)
        return self.other_leads + analysis + tuple(map(Channel, self.formulas))

    @property
    def fields_read(self) -> tuple[Channel, ...]:
        """The channels, and the fields that formulas are computed from."""
        return tuple(dict.fromkeys((*self.channels, *(leaf for formula in self.formulas for leaf in formula.leaves))))


@dataclass(frozen=True)
class Task(HasChannels):
    """Correct the `targets` at `lead_times` (hours) from the ensemble of the `inputs`.

    Every target must be an input, because models correct the raw ensemble. `static` are static fields (`lsm`, `z` of
    the surface) in addition to the position, which is always included. `other_leads` are fields of the same forecast at
    other lead times, in the format of `Channel.other_lead`. `analysis` are variables of the analysis at the start.
    `formulas` are inputs that are computed from other fields, such as `advection(t@850)`; those of groups of members
    are the last, `memberships` after all others. `groups` adds the formulas of `group_formulas` and sets `systems`, the
    name and the first member of each group, so that a forecast may lack all members of a group. `lagged`, the hours
    between earlier starts and the forecast, adds mean and spread of the members that started then and are valid at the
    same time.
    `thresholds` are events that `evaluate` scores, as text such as `> 0 degC`; data and models do not depend on
    thresholds, so tasks that differ only in thresholds are equal.
    """

    name: str
    inputs: tuple[Variable, ...]
    targets: tuple[Variable, ...]
    lead_times: tuple[int, ...]
    static: tuple[str, ...] = ()
    other_leads: tuple[Channel, ...] = ()
    analysis: tuple[Variable, ...] = ()
    formulas: tuple[Formula, ...] = ()
    thresholds: tuple[str, ...] = field(default=(), compare=False)
    systems: tuple[tuple[str, int], ...] = ()
    groups: InitVar[Mapping[str, int] | None] = None
    lagged: InitVar[Iterable[int]] = ()

    def __post_init__(self, groups: Mapping[str, int] | None, lagged: Iterable[int]) -> None:
        object.__setattr__(self, "thresholds", tuple(str(text) for text in _listed("thresholds", self.thresholds)))
        for name in ("inputs", "targets"):
            values = tuple(
                v if isinstance(v, Variable) else Variable.parse(v) for v in _listed(name, getattr(self, name))
            )
            object.__setattr__(self, name, values)
            if not values or len(set(values)) < len(values):
                raise InputError(
                    f"task {self.name}: {name} must be one or more different variables, got {joined(values) or 'none'}"
                )
        if missing := [v for v in self.targets if v not in self.inputs]:
            raise InputError(
                f"task {self.name}: add the target {joined(missing)} to the inputs; models correct its ensemble"
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
        formulas = tuple(v if isinstance(v, Formula) else Formula.parse(v) for v in _listed("formulas", self.formulas))
        formulas += tuple(group_formulas(self.targets, groups or {}))
        systems = dict(groups if groups and len(groups) > 1 else self.systems)
        object.__setattr__(self, "systems", tuple(systems.items()))
        formulas += tuple(lagged_formulas(self.targets, tuple(_listed("lagged", lagged))))
        formulas = tuple(sorted(formulas, key=lambda one: (one.members != (), one.operation == IN_GROUP)))
        object.__setattr__(self, "formulas", formulas)
        for name, found in (("other_leads", others), ("analysis", analysis), ("formulas", formulas)):
            if len(set(found)) < len(found):
                raise InputError(f"task {self.name}: {name} must be different variables, got {joined(found)}")
        for formula in formulas:
            if formula.members and formula.leaves[0].variable not in self.inputs:
                raise InputError(
                    f"task {self.name}: add {formula.leaves[0]} to the inputs; {formula} is of its members"
                )
        for variable in self.inputs:
            if variable.period > leads[0]:
                raise InputError(
                    f"task {self.name}: {variable} begins before the start of a forecast of {leads[0]} h; remove that "
                    "lead time, or choose a shorter period"
                )
        for channel in others:
            if channel.lead_time(leads[-1]) < 0:
                raise InputError(
                    f"task {self.name}: {channel} is before the start of a forecast of {leads[-1]} h; "
                    "remove it, or add longer lead times"
                )
        for leaf in (leaf for formula in formulas for leaf in formula.leaves):
            if leaf.lead_time(leads[-1]) < 0 or leaf.variable.period > leads[0]:
                raise InputError(
                    f"task {self.name}: {leaf}, which a formula needs, is before the start of every forecast; remove "
                    "the formula, or add longer lead times"
                )

    @property
    def target_channels(self) -> tuple[int, ...]:
        """Index of each target among the inputs, which is also its index among the channels."""
        return tuple(self.inputs.index(target) for target in self.targets)

    @property
    def group_means(self) -> tuple[tuple[int, ...], ...]:
        """For each target, the indices among the channels of the means of groups of its members.

        Those of the `systems` are the first. The mean of the last system follows from the ensemble mean and the others,
        and is not among them.
        """
        ranges = [self.members_of(name) for name, _ in self.systems]
        means = [one for one in self.formulas if one.operation in MEANS_OF_GROUPS]
        means = [one for one in means if one.lag or one.members not in ranges[-1:]]
        means.sort(key=lambda one: one.lag > 0 or one.members not in ranges)
        return tuple(
            tuple(self.channels.index(Channel(one)) for one in means if one.leaves[0].variable == target)
            for target in self.targets
        )

    def members_of(self, system: str) -> tuple[int, ...]:
        """Return the first and the last number of the members of a system; of the last system the first number only."""
        names, firsts = zip(*self.systems, strict=True)
        k = names.index(system)
        return (firsts[k] if k else 0, *(firsts[k + 1 : k + 2] and [firsts[k + 1] - 1]))

    def present(self, numbers: Sequence[int], absent: Collection[str]) -> list[int]:
        """Return the positions of the members with these `numbers` that belong to no `absent` system."""
        ranges = [self.members_of(system) for system in absent]
        return [k for k, number in enumerate(numbers) if not any(within(number, own) for own in ranges)]

    def absent(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """Return the systems without a member among these `numbers`."""
        return tuple(
            name for name, _ in self.systems if not any(within(number, self.members_of(name)) for number in numbers)
        )

    def channels_of(self, systems: Collection[str]) -> list[int]:
        """Return the channels of some systems: mean, spread and membership."""
        ranges = [self.members_of(system) for system in systems]
        return [self.channels.index(Channel(one)) for one in self.formulas if not one.lag and one.members in ranges]

    @property
    def system_channels(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """For each system, the channels of the mean of its members and of their spread, one for each target.

        A single member has no channels of a spread.
        """
        place = {(one.operation, one.members, one.leaves[0].variable): self.channels.index(Channel(one))
                 for one in self.formulas if one.operation in (GROUP_MEAN, GROUP_SPREAD)}  # fmt: skip

        def channels(kind: str, own: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(place[kind, own, target] for target in self.targets if (kind, own, target) in place)

        members = [self.members_of(name) for name, _ in self.systems]
        return tuple((channels(GROUP_MEAN, own), channels(GROUP_SPREAD, own)) for own in members)

    @property
    def memberships(self) -> tuple[Formula, ...]:
        """The last channels, which say for each member whether it belongs to a group."""
        return tuple(one for one in self.formulas if one.operation == IN_GROUP)

    def group_shares(self, numbers: Sequence[int]) -> dict[str, float]:
        """Return the share of each group among the members with these numbers, by the text of its mean."""
        means = [one for one in self.formulas if one.operation == GROUP_MEAN]
        return {str(one): sum(map(one.in_group, numbers)) / len(numbers) for one in means}

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
        return replace(self, inputs=self.targets, static=(), other_leads=(), analysis=(), formulas=())

    def to_json(self) -> dict:
        """Return JSON values; `Task(**values)` is an equal task."""
        values = {
            "name": self.name, "inputs": [str(v) for v in self.inputs], "targets": [str(v) for v in self.targets],
            "lead_times": list(self.lead_times), "static": list(self.static),
        }  # fmt: skip
        further = {"other_leads": self.other_leads, "analysis": self.analysis, "formulas": self.formulas}
        found = values | {name: [str(v) for v in found] for name, found in further.items() if found}
        return found | ({"systems": dict(self.systems)} if self.systems else {})


def group_formulas(targets: Iterable[Variable], groups: Mapping[str, int]) -> list[Formula]:
    """Return the inputs that describe groups of exchangeable members, {"control": 0, "perturbed": 1}, of all `targets`.

    A group has a name and the number of its first member; it ends before the first member of the next group, and the
    first group has all members before the second. Inputs are the mean of every group, the spread of every group that
    may have several members, and, for each member, whether it belongs to a group. One group is the ensemble itself, and
    adds nothing.

    >>> print(*group_formulas([Variable("2t")], {"control": 0, "perturbed": 1}))
    group_mean(2t, 0, 0) group_mean(2t, 1) group_spread(2t, 1) in_group(2t, 0, 0)
    """
    firsts = list(groups.values())
    if any(type(one) is not int or one < 0 for one in firsts) or firsts != sorted(set(firsts)):
        raise InputError(
            "task.groups must have the number of the first member of each group, increasing, such as {control: 0, "
            f"perturbed: 1}}, got {dict(groups)}"
        )
    ends = list(pairwise([0, *firsts[1:]]))
    found, targets = [], [*targets]
    for target in targets if ends else ():
        found += [f"{GROUP_MEAN}({target}, {first}, {end - 1})" for first, end in ends]
        found += [f"{GROUP_MEAN}({target}, {firsts[-1]})"]
        several = [f"{first}, {end - 1}" for first, end in ends if end - first > 1]
        found += [f"{GROUP_SPREAD}({target}, {part})" for part in (*several, firsts[-1])]
    found += [f"{IN_GROUP}({targets[0]}, {first}, {end - 1})" for first, end in ends]
    return [Formula.parse(text) for text in found]


def lagged_formulas(targets: Iterable[Variable], lags: Sequence[int]) -> list[Formula]:
    """Return mean and spread of the members of earlier starts, `lags` hours before the forecast, of all `targets`.

    >>> print(*lagged_formulas([Variable("2t")], [24]))
    lagged_mean(2t, 24) lagged_spread(2t, 24)
    """
    if any(type(one) is not int or one <= 0 for one in lags) or list(lags) != sorted(set(lags)):
        raise InputError(f"task.lagged must be increasing whole hours above zero, such as [24, 48], got {list(lags)}")
    operations = (LAGGED_MEAN, LAGGED_SPREAD)
    return [Formula.parse(f"{name}({one}, {lag})") for one in targets for lag in lags for name in operations]


def _listed(name: str, values: object) -> Iterable:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name} must be a list, got {values!r}")
    return values
