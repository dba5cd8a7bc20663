"""Percentiles of CF files: their levels, and their numbers as members of an ensemble."""

from __future__ import annotations

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.plotting_positions import plotting_position
from data_pipeline.formats.cf.cf_header import Coordinate
from data_pipeline.variables.units import normalize_units


def percentile_levels(coordinate: Coordinate, place: str) -> np.ndarray:
    """Return the levels between 0 and 1 of a coordinate of percentiles or quantiles; `place` is the variable's."""
    place = f"{place}: its quantile levels ({coordinate.name})"
    if coordinate.values is None or coordinate.values.dtype.kind not in "fiu":
        raise InputError(f"{place} have no values; add the coordinate, for instance with xarray's assign_coords")
    values = coordinate.values.astype(np.float64)
    units, name = normalize_units(str(coordinate.attributes.get("units", ""))), coordinate.name.lower()
    values = values / 100 if units == "%" or name.startswith("perc") or values.max() > 1 else values
    if not ((values > 0) & (values < 1)).all() or len(np.unique(values)) < values.size:
        shown = ", ".join(f"{value:g}" for value in coordinate.values.ravel()[:5])
        raise InputError(
            f"{place} must be different numbers between 0 and 1 (or 0 and 100 %), got {shown}; leave out the minimum "
            "and the maximum"
        )
    return values


def members_of_percentiles(coordinate: Coordinate, place: str) -> np.ndarray:
    """Return the number of each percentile as a member, 1 for the lowest.

    Raises `InputError` for levels that do not divide the distribution into equal parts, because mean and spread of
    such percentiles are not those of the forecast.
    """
    levels = percentile_levels(coordinate, place)
    if not plotting_position(levels):
        shown = ", ".join(f"{100 * level:g}" for level in np.sort(levels, axis=None)[:5])
        raise InputError(
            f"{place} has the percentiles {shown}{', ...' if levels.size > 5 else ''}, which cannot stand for members: "
            "those need the levels k/(M + 1) or (k - 1/2)/M of M percentiles, such as 10, 20, ..., 90; resample them, "
            "for instance with improver resample-percentiles, or score them as forecasts of evaluate"
        )
    return np.argsort(np.argsort(levels, axis=None)).reshape(levels.shape) + 1
