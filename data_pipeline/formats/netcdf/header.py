"""Header: what one NetCDF file says of itself before any field is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.netcdf.file import File
from data_pipeline.formats.netcdf.roles import Role, role_of


@dataclass(frozen=True, eq=False)
class Coordinate:
    """Values that count something along dimensions, or once (no dimension); None where only the dimension is there."""

    name: str
    role: Role
    dimensions: tuple[str, ...]
    values: np.ndarray | None
    attributes: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Entry:
    """A variable that is no coordinate."""

    name: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    attributes: Mapping[str, Any]

    @property
    def listed(self) -> tuple[str, ...]:
        """The coordinates that the variable itself names."""
        return tuple(str(self.attributes.get("coordinates", "")).split())

    def spread(self, coordinate: Coordinate, values: np.ndarray, outer: tuple[str, ...]) -> np.ndarray:
        """Return `values` of a coordinate for every field of this variable, flat, along its `outer` dimensions."""
        size = dict(zip(self.dimensions, self.shape, strict=True))
        order = [coordinate.dimensions.index(name) for name in outer if name in coordinate.dimensions]
        shape = [size[name] if name in coordinate.dimensions else 1 for name in outer]
        return np.broadcast_to(values.transpose(order).reshape(shape), [size[name] for name in outer]).ravel()


@dataclass(frozen=True, eq=False)
class Header:
    """Coordinates and variables of one file; numbers only, bounds and grid mappings left out."""

    file: File
    coordinates: tuple[Coordinate, ...]
    entries: tuple[Entry, ...]
    mappings: Mapping[str, str]

    @classmethod
    def of(cls, path: Path) -> Header:
        """Read the header of a file."""
        file = File.at(path)
        with file.opened() as dataset:
            try:
                header = _read(file, dataset)
                groups = tuple(dataset.groups)
            except (OSError, RuntimeError) as error:
                raise InputError(f"{path} is damaged: its header cannot be read ({error}); fetch it again") from None
        if groups and not header.entries:
            raise InputError(
                f"{path} keeps its variables in groups ({', '.join(groups)}), which are not read; "
                f"take one out first, for instance with ncks -G : -g {groups[0]}"
            )
        return header

    def place(self, entry: Entry) -> str:
        """Return where a variable stands, in words."""
        return f"{self.file.path} ({entry.name})"

    def only(self, entry: Entry, role: Role) -> Coordinate | None:
        """Return the one coordinate of a variable that has a role, None where there is none; several are an error."""
        found = self.along(entry, role)
        if len(found) > 1:
            raise InputError(
                f"{self.place(entry)}: {' and '.join(c.name for c in found)} may each tell its {role}; list one in "
                f"its attribute coordinates, or take the others out, for instance with ncks -C -x -v {found[1].name}"
            )
        return found[0] if found else None

    def along(self, entry: Entry, role: Role) -> list[Coordinate]:
        """Return the coordinates of a variable that have a role.

        Where there are several, those that are dimensions win, then those that the variable itself lists.
        """
        found = [c for c in self.coordinates if c.role == role and set(c.dimensions) <= set(entry.dimensions)]
        if any(c.values is not None for c in found):
            found = [c for c in found if c.values is not None]
        for certain in (lambda c: c.dimensions == (c.name,), lambda c: c.name in entry.listed):
            if len(found) > 1 and (chosen := [c for c in found if certain(c)]):
                found = chosen
        return found


def _read(file: File, dataset: netCDF4.Dataset) -> Header:
    attributes = {name: variable.__dict__ for name, variable in dataset.variables.items()}
    helpers = {
        str(own[key])
        for own in attributes.values()
        for key in ("bounds", "climatology", "grid_mapping", "formula_terms")
        if key in own
    }
    coordinates: list[Coordinate] = []
    for name, variable in dataset.variables.items():
        if name not in helpers and (role := _coordinate_role(name, variable, attributes[name], dataset)):
            coordinates.append(Coordinate(name, role, variable.dimensions, _values(variable), attributes[name]))
    known = {coordinate.name for coordinate in coordinates}
    of_dimensions = {c.dimensions for c in coordinates}
    for name in dataset.dimensions:
        if (name,) not in of_dimensions and name not in dataset.variables and (role := role_of(name, {})):
            coordinates.append(Coordinate(name, role, (name,), None, {}))
    entries = [
        Entry(name, variable.dimensions, variable.shape, attributes[name])
        for name, variable in dataset.variables.items()
        if name not in known | helpers
        and name not in dataset.dimensions
        and getattr(variable.dtype, "kind", "O") in "fiu"
    ]
    mappings = {name: str(own["grid_mapping_name"]) for name, own in attributes.items() if "grid_mapping_name" in own}
    return Header(file, tuple(coordinates), tuple(entries), mappings)


def _coordinate_role(
    name: str, variable: netCDF4.Variable, attributes: Mapping[str, Any], dataset: netCDF4.Dataset
) -> Role | None:
    """Return the role of a variable that is a coordinate: named like its dimension, or small and clearly one."""
    role = role_of(name, attributes)
    if variable.dimensions == (name,) or role is None:
        return role
    if variable.ndim > 2 or not (attributes.keys() & {"standard_name", "units", "axis"} or variable.ndim == 0):
        return None
    if variable.ndim == 2 and role not in ("latitude", "longitude", "time", "valid", "lead"):
        return None
    across = {role_of(d, dataset[d].__dict__ if d in dataset.variables else {}) for d in variable.dimensions}
    return None if len(across & {"latitude", "longitude"}) == 2 and role not in ("latitude", "longitude") else role


def _values(variable: netCDF4.Variable) -> np.ndarray:
    values = variable[...]
    return np.ma.filled(values.astype(np.float64), np.nan) if np.ma.is_masked(values) else np.asarray(values)
