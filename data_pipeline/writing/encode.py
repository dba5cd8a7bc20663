"""Encoder: make new GRIB messages from fields. `rewriting` changes the values of existing messages."""

from __future__ import annotations

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import COORDINATE_TOLERANCE, Grid

MISSING = float(np.finfo(np.float32).max)
"""The number that marks missing values in arrays for ecCodes.

The file holds a bitmap, not this number. ecCodes' own default, 9999, is an honest geopotential: at 1000 hPa
it would punch a hole into the field.
"""

ORDER = (
    "centre", "setLocalDefinition", "localDefinitionNumber", "productDefinitionTemplateNumber",
    "class", "marsClass", "type", "marsType", "stream", "marsStream", "expver", "experimentVersionNumber",
    "typeOfLevel", "level", "paramId", "shortName",
    "referenceDate", "dataDate", "dataTime", "stepUnits", "stepType", "startStep", "endStep", "step",
    "numberOfForecastsInEnsemble", "totalNumber", "perturbationNumber", "number",
)  # fmt: skip
"""Keys in the order in which they must be set: setting a key may reset the keys after it.

Keys that change from message to message come last. Other keys are set before these, in the order given.
"""

MAX_INCREMENT = 65.0
"""Largest increment in degrees that GRIB1 can store; for coarser grids, only the edges are stored."""


class Encoder:
    """Turns fields on one grid into GRIB messages; `keys` are the ecCodes keys that all messages share.

    >>> encoder = Encoder(Grid.regular(3, 4), centre="ecmf", shortName="2t", typeOfLevel="surface")
    >>> message = encoder.encode(np.full((3, 4), 280.0), dataDate=19980104, step=48)
    >>> message[:4], message[-4:]
    (b'GRIB', b'7777')
    """

    _handle: int | None = None
    """The ecCodes message with the keys `_current`."""

    def __init__(self, grid: Grid, *, edition: int = 1, **keys: object) -> None:
        if edition not in (1, 2):
            raise InputError(f"edition must be 1 or 2, got {edition!r}")
        self.grid = grid
        self._fixed = keys
        self._bits = keys.get("bitsPerValue", 16)
        self._template = grid_template(grid, edition)
        self._current: dict[str, object] = {}

    def encode(self, values: np.ndarray, **keys: object) -> bytes:
        """Return a message with `values` (H, W), NaN where missing, and `keys`.

        Keys of an earlier message are not kept.
        """
        if values.shape != self.grid.shape:
            raise ValueError(f"values have shape {values.shape}, the grid has shape {self.grid.shape}")
        flat = np.array(values, np.float64).ravel()
        missing = np.isnan(flat)
        bitmap = int(missing.any())
        if bitmap:
            flat[missing] = MISSING
        handle = self._set({**self._fixed, **keys})
        eccodes.codes_set(handle, "bitmapPresent", bitmap)
        # The bits are set for every field, because a constant field resets them to 0.
        eccodes.codes_set(handle, "bitsPerValue", keys.get("bitsPerValue", self._bits))
        eccodes.codes_set_double_array(handle, "values", flat)
        return eccodes.codes_get_message(handle)

    def _set(self, keys: dict[str, object]) -> int:
        """Return a handle with exactly `keys`; only the first changed key and the keys after it are set."""
        keys = {name: keys[name] for name in sorted(keys, key=rank_of_key) if name != "bitsPerValue"}
        if self._handle is None or list(keys) != list(self._current):
            self._forget()
            self._handle = eccodes.codes_new_from_message(self._template)
            eccodes.codes_set(self._handle, "missingValue", MISSING)
        changed = not self._current
        for name, value in keys.items():
            changed = changed or self._current[name] != value
            if changed:
                try:
                    eccodes.codes_set(self._handle, name, value)
                except eccodes.CodesInternalError as error:
                    self._forget()
                    raise ValueError(f"ecCodes cannot set {name}={value!r}: {error}") from None
        self._current = keys
        return self._handle

    def _forget(self) -> None:
        if self._handle is not None:
            eccodes.codes_release(self._handle)
        self._handle, self._current = None, {}

    def __del__(self) -> None:
        self._forget()


def rank_of_key(name: str) -> int:
    """Return the place of a key in the order in which keys must be set; see `ORDER`."""
    return ORDER.index(name) if name in ORDER else -1


def grid_template(grid: Grid, edition: int) -> bytes:
    """Return a GRIB message on `grid`, whose other keys and values are those of ecCodes' sample."""
    handle = eccodes.codes_grib_new_from_samples(f"regular_ll_pl_grib{edition}")
    try:
        for name, value in _grid_keys(grid).items():
            if value is None:
                eccodes.codes_set_missing(handle, name)
            else:
                eccodes.codes_set(handle, name, value)
        return eccodes.codes_get_message(handle)
    finally:
        eccodes.codes_release(handle)


def _grid_keys(grid: Grid) -> dict[str, int | float | None]:
    """Return the keys that describe a regular grid; None is ecCodes' missing value."""
    lat, lon = np.array(grid.latitudes), np.array(grid.longitudes)
    keys: dict[str, int | float | None] = {
        "Ni": len(lon), "Nj": len(lat),
        "iScansNegatively": 0, "jScansPositively": 0, "jPointsAreConsecutive": 0,
    }  # fmt: skip
    increments: dict[str, float | None] = {}
    widest = 0.0
    for axis, name, values in (("i", "longitude", lon), ("j", "latitude", lat)):
        # A single point has no increment, but ecCodes requires one; its value does not matter.
        steps = np.abs(np.diff(values)) if len(values) > 1 else np.ones(1)
        if np.ptp(steps) > COORDINATE_TOLERANCE:
            raise InputError(
                f"GRIB is written on regular grids, the {name}s of {grid} are not evenly spaced; interpolate first"
            )
        keys[f"{name}OfFirstGridPointInDegrees"] = values[0]
        keys[f"{name}OfLastGridPointInDegrees"] = values[-1]
        increments[f"{axis}DirectionIncrementInDegrees"] = steps.mean()
        widest = max(widest, steps.mean())
    if widest > MAX_INCREMENT:
        increments = {"ijDirectionIncrementGiven": 0, "iDirectionIncrement": None, "jDirectionIncrement": None}
    return keys | increments
