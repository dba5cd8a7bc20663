"""Fields that describe a group of exchangeable members, or an earlier start: mean, spread, and which members belong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import format_values
from data_pipeline.formulas.formula import SPREADS_OF_GROUPS, Formula
from data_pipeline.grid import Grid
from data_pipeline.protocols import FieldReader, Fields, MissingFields, Window
from data_pipeline.regridding.regridded_reader import RegriddedReader, on_forecasts_grid
from data_pipeline.variables.meaning import INSTANT, Meaning


def group_fields(own: Fields, formulas: Sequence[Formula]) -> Fields:
    """Return the fields of formulas of groups; `own` has the members of their variable.

    All formulas have one variable and one lag, by which the lead times of `own` are longer than those of the result.
    There is one field for each start, lead time and formula, which all members share. It is missing in the cells where
    a member of the group is missing, and everywhere if `own` has no member of the group.
    """
    starts, leads, lag = len(own.init_times), len(own.lead_times), formulas[0].lag
    parts, meanings = list[np.ndarray](), list[Meaning]()
    for formula in formulas:
        members = [k for k, number in enumerate(own.numbers) if formula.in_group(number)]
        parts.append(own.cells[:, :, members, 0].reshape(starts * leads, len(members)))
        meanings.append(replace(own.meanings[0], variable=formula))
    cells = np.arange(starts * leads * len(formulas), dtype=np.int32).reshape(len(formulas), starts, leads, 1)
    cells[[not part.size for part in parts]] = -1
    reader = GroupReader(own.reader, tuple(parts), tuple(one.operation in SPREADS_OF_GROUPS for one in formulas))
    init_times, lead_times = own.init_times + np.timedelta64(lag, "h"), tuple(lead - lag for lead in own.lead_times)
    return Fields(
        reader, tuple(formulas), init_times, lead_times,
        own.numbers[:1], tuple(meanings), np.ascontiguousarray(np.moveaxis(cells, 0, -1)),
        partial(_incomplete, own, tuple(map(str, formulas))),
    )  # fmt: skip


def group_members(own: Fields, formula: Formula) -> tuple[int, ...]:
    """Return 1 for each member of `own` in the group of a formula, else 0."""
    return tuple(int(formula.in_group(number)) for number in own.numbers)


def check_members(numbers: Sequence[int], formulas: Iterable[Formula]) -> None:
    """Raise `InputError` for a group without any of the members `numbers`."""
    for formula in formulas:
        if formula.members and not any(map(formula.in_group, numbers)):
            raise InputError(
                f"the ensemble has no member of the group {formula}: its members have the numbers "
                f"{format_values(numbers)}; add the files of this group, or change task.groups"
            )


def membership_fields(own: Fields, formula: Formula) -> Fields:
    """Return the fields of `in_group`. For each start and lead time of `own` there are two, with the values 0 and 1.

    The two count as members 0 and 1 of an ensemble. A member of `own` takes the field whose number `group_members` has.
    """
    cells = np.zeros((len(own.init_times), len(own.lead_times), 2, 1), np.int32)
    cells[:, :, 1] = 1
    on_grid = on_forecasts_grid(own.reader)
    reader: FieldReader = ConstantReader((on_grid or own).grid)
    reader = RegriddedReader(reader, own.grid) if on_grid else reader
    meaning = Meaning(formula, "1", (INSTANT,) * len(own.lead_times))
    return Fields(reader, (formula,), own.init_times, own.lead_times, (0, 1), (meaning,), cells)


@dataclass(frozen=True, eq=False)
class ConstantReader:
    """Reads fields that have their number in all cells."""

    grid: Grid

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Fill `out` (..., h, w) with the numbers `wanted` (...); see `FieldReader`."""
        out[...] = np.where(wanted < 0, np.nan, wanted)[..., None, None]


def _incomplete(own: Fields, channels: tuple[str, ...]) -> Mapping[tuple[int, int], MissingFields]:
    """Return the missing members of `own` as missing members of all `channels`."""
    return {
        key: replace(one, channels=channels, count=len(channels) * one.count, of=len(channels) * one.of)
        for key, one in own.incomplete.items()
    }


@dataclass(frozen=True, eq=False)
class GroupReader:
    """Computes fields from the members of groups, in double precision.

    `parts` holds, for each formula, the fields (n, members) of `base` for n starts and lead times. The fields of the
    first formula have the numbers 0 to n - 1, those of the second n to 2n - 1, and so on.
    """

    base: FieldReader
    parts: tuple[np.ndarray, ...]
    spreads: tuple[bool, ...]

    @property
    def grid(self) -> Grid:
        """The grid of the values."""
        return self.base.grid

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted` (...); see `FieldReader`."""
        read: dict[bytes, np.ndarray] = {}  # mean and spread of one group need the same members
        for position in np.ndindex(wanted.shape):
            if wanted[position] < 0:
                out[position] = np.nan
                continue
            formula, place = divmod(int(wanted[position]), len(self.parts[0]))
            members = self.parts[formula][place]
            if (key := members.tobytes()) not in read:
                read[key] = np.empty((len(members), *out.shape[wanted.ndim :]), out.dtype)
                self.base.read(members, read[key], window)
            values = read[key].astype(np.float64)
            if not self.spreads[formula]:
                out[position] = values.mean(0)
            else:
                out[position] = values.std(0, ddof=1) if len(values) > 1 else values[0] * 0
