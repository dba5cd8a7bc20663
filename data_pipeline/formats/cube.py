"""Fields laid out by variable, time and member; what is missing or there twice is said."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import Catalog

Missing = Literal["error", "mask"]
"""What a field that is not in the files is: an error, or NaN."""


@dataclass(frozen=True, eq=False)
class Cube:
    """Fields by variable and position along `axes`; `cells` holds their rows, -1 where there is none."""

    catalog: Catalog
    axes: Mapping[str, np.ndarray]
    cells: np.ndarray

    @classmethod
    def forecasts(cls, catalog: Catalog, lead_times: Sequence[int] | None, missing: Missing) -> Cube:
        """Lay out forecasts by `init_time`, `lead_time` (hours) and `number`; None stands for all that are there."""
        catalog = _at_lead_times(catalog, lead_times)
        rows = catalog.rows
        values = {
            "init_time": _times(rows),
            "lead_time": rows["step"].astype(np.int64) // 60,
            "number": rows["number"].astype(np.int64),
        }
        return cls.of(catalog, values)._checked(missing)

    @classmethod
    def analyses(cls, catalog: Catalog, missing: Missing) -> Cube:
        """Lay out analyses by `time`: the fields that are valid at their own start."""
        catalog = catalog.where(catalog.rows["step"] == 0)
        if not len(catalog.rows):
            raise InputError(f"{catalog} has forecasts but no analysis (step 0); name files of analyses")
        return cls.of(catalog, {"time": _times(catalog.rows)})._checked(missing)

    @classmethod
    def of(cls, catalog: Catalog, values: Mapping[str, np.ndarray]) -> Cube:
        """Lay out the fields along the axes named in `values`, which say where on each a field belongs.

        Two different fields for one cell, and a cube of which more than half would be missing, are errors.
        """
        axes = {name: np.unique(value) for name, value in values.items()}
        shape = (len(catalog.wanted), *(len(axis) for axis in axes.values()))
        positions = [np.searchsorted(axis, values[name]) for name, axis in axes.items()]
        cell = np.ravel_multi_index((catalog.rows["variable"], *positions), shape)
        order = np.argsort(cell, kind="stable")
        repeated = np.flatnonzero(np.diff(cell[order]) == 0)
        _refuse_mostly_empty(catalog, ("variable", *axes), shape, len(cell) - len(repeated))
        for k in repeated:
            catalog.refuse_contradiction(int(order[k]), int(order[k + 1]))
        cells = np.full(shape, -1, np.int32)
        cells.ravel()[cell] = np.arange(len(cell))
        return cls(catalog, axes, cells)

    @property
    def token(self) -> str:
        """Names this cube as long as its files do not change."""
        digest = hashlib.sha256(self.cells.tobytes() + self.catalog.rows.tobytes())
        for path in self.catalog.paths:
            digest.update(f"{path.absolute()} {path.stat().st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def _checked(self, missing: Missing) -> Cube:
        if missing not in ("error", "mask"):
            raise InputError(f"missing must be error or mask, got {missing!r}")
        if missing == "error":
            self._refuse_holes()
        return self

    def _refuse_holes(self) -> None:
        """Raise an error that names the first field that is missing, if there is one."""
        holes = self.cells < 0
        if not holes.any():
            return
        variable, *position = np.unravel_index(int(holes.argmax()), holes.shape)
        values = (axis[k] for axis, k in zip(self.axes.values(), position, strict=True))
        where = ", ".join(f"{name} {_text(value)}" for name, value in zip(self.axes, values, strict=True))
        file, what = self._nearest_file(variable, position[0]), self.catalog.wanted[variable]
        raise InputError(
            f"{file} lacks {what} at {where}, the first of {holes.sum()} missing fields; complete the files, "
            "name other variables or lead times, or set missing to mask"
        )

    def _nearest_file(self, variable: np.intp, time: np.intp) -> Path:
        """Return the file where a missing field should be: it holds the variable and time, or one of them."""
        times = self.cells.reshape(*self.cells.shape[:2], -1)
        for near in (times[variable, time], times[:, time], times[variable]):
            if (near >= 0).any():
                return self.catalog.paths[self.catalog.rows["file"][near[near >= 0][0]]]
        return self.catalog.paths[0]


def _times(rows: np.ndarray) -> np.ndarray:
    return rows["init"].astype("datetime64[s]").astype("datetime64[ns]")


def _at_lead_times(catalog: Catalog, lead_times: Sequence[int] | None) -> Catalog:
    """Return the fields at `lead_times`, which must be there; with None all, whose steps must be whole hours."""
    minutes = catalog.rows["step"]
    if lead_times is None:
        if odd := np.flatnonzero((minutes < 0) | (minutes % 60 > 0)).tolist():
            raise InputError(
                f"{catalog.place(odd[0])} is not valid a whole number of hours after its start; "
                "name the lead_times (in hours) that you want"
            )
        return catalog
    leads = np.unique(np.array(lead_times, np.int64))
    if not leads.size:
        raise InputError(f"no lead time of {catalog} was requested; name at least one, in hours")
    there = np.unique(minutes)
    if absent := [lead for lead in leads.tolist() if lead * 60 not in there]:
        hours = ", ".join(f"{step / 60:g}" for step in there if step >= 0)
        raise InputError(f"{catalog} has no lead time {', '.join(map(str, absent))} h; it has {hours} h")
    return catalog.where(np.isin(minutes, leads * 60))


def _refuse_mostly_empty(catalog: Catalog, names: Sequence[str], shape: Sequence[int], filled: int) -> None:
    """Refuse to make a cube of which more than half would be missing, before memory is taken for it."""
    fields = int(np.prod(shape, dtype=np.int64))
    if 2 * filled >= fields:
        return
    size = fields * np.prod(catalog.source.grid.shape) * 4 / 1e6
    sizes = " x ".join(f"{name} {count}" for name, count in zip(names, shape, strict=True))
    raise InputError(
        f"{catalog} has only {filled} of the {fields} fields that belong together ({sizes}, {size:.0f} MB): "
        f"{1 - filled / fields:.0%} are missing; name variables, lead times or files that go together"
    )


def _text(value: np.generic) -> str:
    return str(value.astype("datetime64[m]")) if isinstance(value, np.datetime64) else str(value)
