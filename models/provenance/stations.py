"""What a corrector that was moved to other stations states about them: `provenance["stations"]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from data_pipeline.grid import Grid
from data_pipeline.task import Task


class StationCounts(NamedTuple):
    """How many stations of a moved corrector are known, predicted, and raw because they are far from all known ones."""

    own: int
    new: int
    far: int

    @classmethod
    def of(cls, grid: Grid, provenance: Mapping[str, Any]) -> StationCounts | None:
        """Return the counts of a moved corrector, None for one at its own stations."""
        if (about := provenance.get("stations")) is None:
            return None
        new, far = len(about["new"]), len(about["far"])
        return cls(grid.shape[0] - new - far, new, far)


def describe_stations(task: Task, grid: Grid, provenance: Mapping[str, Any]) -> str | None:
    """Return a sentence about the stations of a moved corrector, None for one at its own stations."""
    if (counts := StationCounts.of(grid, provenance)) is None:
        return None
    about = provenance["stations"]
    sentence = f"{counts.own} of {sum(counts)} stations are stations of the training"
    if counts.new:
        errors = [
            f"{_range(of_target, relative)}{f' {target.units}' * bool(target.units and not relative)} for {target}"
            for target, relative, of_target in zip(
                task.targets, about["relative"], zip(*about["error"], strict=True), strict=True
            )
        ]
        sentence += (
            f"; {counts.new} are new ({_named(grid, about['new'])}): their correction is predicted from "
            f"{about['known']} stations, and their additional error is estimated as {', '.join(errors)}"
        )
    if counts.far:
        sentence += (
            f"; {counts.far} are more than {about['reach']:.0f} km from all of these and keep the raw ensemble "
            f"({_named(grid, about['far'])})"
        )
    return sentence


def _range(errors: Sequence[float], relative: bool) -> str:
    """Return the least and the greatest error as text; a relative one is a share of the forecast's spread."""
    form = "{:.0f} %" if relative else "{:.2g}"
    text = " to ".join(dict.fromkeys(form.format(100 * one if relative else one) for one in (min(errors), max(errors))))
    return text + " of the standard deviation" * relative


def _named(grid: Grid, positions: Sequence[int]) -> str:
    """Return the ids, or the positions, of the first three of some stations."""
    ids: Sequence[str] = getattr(grid, "ids", ())
    found = [ids[k] if ids else f"{grid.latitudes[k]:g}°N {grid.longitudes[k]:g}°E" for k in positions[:3]]
    return ", ".join(found) + ", ..." * (len(positions) > 3)
