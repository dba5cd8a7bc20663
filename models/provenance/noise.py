"""Noise: the errors of a corrector in training, from which `members=noise` draws (`models.members.noise`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from data_pipeline.task import Task

ERROR_STEPS = 25
"""Steps of one standard deviation in stored errors, which reach ±5 standard deviations."""


@dataclass(frozen=True)
class Noise:
    """Normal scores of analyses in corrected distributions; part of a corrector file."""

    errors: np.ndarray
    """(n, K, H, W) int8: normal scores times `ERROR_STEPS` on the whole grid, with mean 0; 0 where one is missing."""
    fields: tuple[tuple[str, int], ...]
    """Target and lead time (hours) of the K fields of an error."""
    starts: tuple[int, ...]
    """Start of each error, in seconds since 1970; it names the random numbers."""
    as_many: float
    """Weight of the raw ranks for at most as many members as the raw ensemble has."""
    more: float
    """Weight of the raw ranks for more members."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any], errors: np.ndarray, task: Task) -> Self:
        """Return the noise of a corrector file. Raises `ValueError` if its parts do not suit each other."""
        fields = tuple((str(target), int(lead)) for target, lead in values["fields"])
        found = cls(errors, fields, tuple(map(int, values["starts"])), float(values["as_many"]), float(values["more"]))
        wanted = sorted((str(target), lead) for target in task.targets for lead in task.lead_times)
        if (
            sorted(fields) != wanted
            or errors.dtype != np.int8
            or errors.shape[:2] != (len(found.starts), len(fields))
            or not (0 <= found.as_many <= 1 and 0 <= found.more <= 1)
        ):
            raise ValueError("its noise does not suit its task")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return everything but the errors."""
        return {
            "fields": [list(one) for one in self.fields],
            "starts": list(self.starts),
            "as_many": self.as_many,
            "more": self.more,
        }
