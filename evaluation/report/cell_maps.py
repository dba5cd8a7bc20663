"""Maps of scores for the page's script: numbers of cells, rounded to the decimals that the page shows, as text."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from data_pipeline.grid import COORDINATE_TOLERANCE, Grid
from data_pipeline.points import Points
from evaluation.report.coastlines import Coastlines
from evaluation.report.map_view import view_of
from evaluation.report.maps import BETTER, DIVERGING, SEQUENTIAL
from evaluation.report.shown_data import MapData
from evaluation.report.tables import amount_decimals, display_of

NO_VALUE = 2**32 - 1
"""Stands for a cell without a value."""
MAP_BUDGET = 4_600_000
"""Characters of all maps of a page together, which then stays below 6 MB. Larger maps are made coarser."""
MAP_LEADS = 6
"""Number of lead times that have maps; of more, these are evenly spaced, with the first and the last."""
COAST_DECIMALS = 2
"""Decimals of the degrees of coasts: a kilometre."""
COMPRESSION = 6
"""Level 9 takes ten times as long and saves 2 %."""
OUTER = 0.02
"""Share of the cells whose values may lie beyond either end of a colour scale."""


@dataclass(frozen=True)
class CellScore:
    """A score of single cells: its name, its note, and how it is shown."""

    title: str
    note: str
    units: str
    decimals: int
    cmap: str
    signed: bool = False
    middle: float | None = None
    logarithmic: bool = False


def cell_scores(scores: Mapping[str, Any]) -> dict[str, CellScore]:
    """Return the scores of cells by their key."""
    display, decimals = display_of(scores), max(0, amount_decimals(scores) - 1)
    return {
        "skill": CellScore(
            "CRPS below raw", "Blue-green: a lower CRPS than the raw ensemble; brown: a higher one.", "%", 0, BETTER,
            signed=True, middle=0.0,
        ),
        "crps": CellScore("CRPS", "Dark: large errors. Lower is better.", display.units, decimals, SEQUENTIAL),
        "bias": CellScore(
            "Bias", "Mean forecast minus analysis. Red: the forecast is too high.", display.units, decimals, DIVERGING,
            signed=True, middle=0.0,
        ),
        "ratio": CellScore(
            "Spread / error", "1 is calibrated. Blue: the forecast is overconfident; red: its spread is too large.", "",
            2, DIVERGING, middle=1.0, logarithmic=True,
        ),
    }  # fmt: skip


def cell_values(scores: Mapping[str, Any], fields: MapData, key: str, model: str, lead: int) -> np.ndarray | None:
    """Return one score of one model in every cell (H, W) as the page shows it, NaN where there is none.

    The CRPS is the fair one where it is valid. None: there is no such map (the skill of the reference itself).
    """
    averages, factor = fields.cells[lead], display_of(scores).factor
    crps = averages["crps_fair" if scores["models"][model]["crps_fair_valid"] else "crps"]
    with np.errstate(invalid="ignore", divide="ignore"):
        if key == "crps":
            return factor * crps[model]
        if key == "skill":
            raw = crps["raw"]
            return None if model == "raw" else 100 * (1 - crps[model] / np.where(raw > 0, raw, np.nan))
        if key == "bias":
            return factor * averages["error"][model]
        error = averages["squared_error"][model]
        return np.sqrt(averages["expected_squared_error"][model] / np.where(error > 0, error, np.nan))


def map_payload(scores: Mapping[str, Any], fields: MapData, budget: int = MAP_BUDGET) -> dict[str, Any] | None:
    """Return grid, colours and all maps for the page's script; None if there are no maps.

    Cells are joined to squares of 2 x 2, 3 x 3, ... until all maps fit into the `budget`; points are never joined.
    """
    if not fields.cells:
        return None
    kinds, leads = cell_scores(scores), spaced(list(fields.cells))
    found = {
        (key, model, lead): values
        for key in kinds
        for model in scores["models"]
        for lead in leads
        if (values := cell_values(scores, fields, key, model, lead)) is not None
    }
    side = 1
    while (maps := _packed_maps(found, kinds, side, budget)) is None and not isinstance(fields.grid, Points):
        side += 1
    if maps is None:
        return None
    scales = {
        key: _scale(kind, [v for (name, model, _), v in found.items() if name == key and model != "climatology"])
        for key, kind in kinds.items()
    }
    return {
        "grid": _grid(fields.grid, side),
        "coast": _coast(fields.grid, side) if fields.earth else None,
        "land": _land(fields, side),
        "side": side,
        "leads": leads,
        "models": list(scores["models"]),
        "fields": [
            {
                "key": key, "title": kind.title, "note": _note(kind, side), "units": kind.units,
                "decimals": kind.decimals, "signed": kind.signed, "scale": scales[key],
            }
            for key, kind in kinds.items()
        ],
        "colours": {name: _colour_table(name) for name in (BETTER, SEQUENTIAL, DIVERGING)},
        "maps": maps,
    }  # fmt: skip


def joined_cells(values: np.ndarray, side: int) -> np.ndarray:
    """Return the means of squares of `side` x `side` cells (H, W) without NaN; the last squares may be smaller."""
    if side == 1:
        return values
    rows, columns = np.arange(0, values.shape[0], side), np.arange(0, values.shape[1], side)

    def summed(array: np.ndarray) -> np.ndarray:
        return np.add.reduceat(np.add.reduceat(array, rows, axis=0), columns, axis=1)

    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return summed(np.where(known, values, 0.0)) / summed(known.astype(float))


def spaced(leads: list[int]) -> list[int]:
    """Return at most `MAP_LEADS` lead times, evenly spaced from the first to the last."""
    places = np.linspace(0, len(leads) - 1, min(MAP_LEADS, len(leads)))
    return [leads[round(place)] for place in places.tolist()]


def packed(values: np.ndarray, decimals: int) -> dict[str, Any]:
    """Return values (H, W), rounded to `decimals`, as text: value = (first + k) / 10^decimals, k from 0.

    The k are differences to the cell before modulo 2^32. The lowest bytes of all cells come first, then the next ones:
    higher bytes are nearly always alike and take no space when they are compressed.
    """
    scaled = np.rint(values.ravel() * 10.0**decimals)
    known = np.isfinite(scaled)
    first = int(scaled[known].min()) if known.any() else 0
    steps = np.full(scaled.shape, NO_VALUE, np.uint32)
    steps[known] = (scaled[known] - first).astype(np.uint32)
    differences = np.diff(steps, prepend=np.uint32(0))
    planes = np.concatenate([(differences >> shift) & 255 for shift in (0, 8, 16, 24)]).astype(np.uint8)
    return {"first": first, "per": 10**decimals, "data": _compressed(planes)}


def _packed_maps(
    found: Mapping[tuple[str, str, int], np.ndarray], kinds: Mapping[str, CellScore], side: int, budget: int
) -> dict[str, dict[str, list[dict[str, Any]]]] | None:
    """Return the maps by score and model, one for each lead time; None if they exceed the budget."""
    maps: dict[str, dict[str, list[dict[str, Any]]]] = {key: {} for key in kinds}
    for (key, model, _), values in found.items():
        one = packed(joined_cells(values, side), kinds[key].decimals)
        budget -= len(one["data"])
        if budget < 0:
            return None
        maps[key].setdefault(model, []).append(one)
    return maps


def _compressed(values: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(values.tobytes(), COMPRESSION)).decode()


def _note(kind: CellScore, side: int) -> str:
    return kind.note + (f" A value is the mean of {side} × {side} cells of the grid." if side > 1 else "")


def _scale(kind: CellScore, values: list[np.ndarray]) -> dict[str, Any]:
    """Return the ends of a colour scale, their logarithms if it is logarithmic; symmetric about a middle."""
    everything = np.concatenate([v[np.isfinite(v)].ravel() for v in values]) if values else np.zeros(0)
    if kind.logarithmic:
        everything = np.log(everything[everything > 0])
    if not everything.size:
        everything = np.array([-1.0, 1.0])
    if kind.middle is None:
        low, high = (float(end) for end in np.quantile(everything, [OUTER / 2, 1 - OUTER / 2]))
        high = high if high > low else low + 1
    else:
        middle = float(np.log(kind.middle)) if kind.logarithmic else kind.middle
        reach = float(np.quantile(abs(everything - middle), 1 - OUTER)) or 1.0
        low, high = middle - reach, middle + reach
    return {"low": low, "high": high, "log": kind.logarithmic, "cmap": kind.cmap}


def _colour_table(name: str) -> str:
    """Return 256 colours of a colour map as hexadecimal digits, six each."""
    return "".join(to_hex(colour)[1:] for colour in colormaps[name](np.linspace(0, 1, 256)))


def _grid(grid: Grid, side: int) -> dict[str, Any]:
    """Return the middles of (joined) cells, in degrees; `limits` are south, north, west and east of a region."""
    globe = view_of(grid).globe
    points = isinstance(grid, Points)
    latitudes, longitudes = (_middles(np.array(axis), side) for axis in (grid.latitudes, grid.longitudes))
    # A little to the west of the first cell, so that rounding moves no cell by a whole turn.
    west = -180.0 if globe else _west(longitudes) - COORDINATE_TOLERANCE
    around = (longitudes - west) % 360 + west
    margin = [
        0.5 * _spacing(axis) if not points else max(0.08 * float(np.ptp(axis)), 0.5) for axis in (latitudes, around)
    ]
    limits = [
        max(-90.0, latitudes.min() - margin[0]), min(90.0, latitudes.max() + margin[0]),
        around.min() - margin[1], around.max() + margin[1],
    ]  # fmt: skip
    return {
        "globe": globe, "points": points, "west": west,
        "limits": [round(float(end), 4) for end in limits],
        "latitudes": [round(value, 4) for value in latitudes.tolist()],
        "longitudes": [round(value, 4) for value in longitudes.tolist()],
        "names": list(grid.ids) if isinstance(grid, Points) else [],
    }  # fmt: skip


def _coast(grid: Grid, side: int) -> dict[str, Any]:
    """Return the coasts of the Earth: longitudes of all points, then latitudes; `ends` of the lines."""
    found = _grid(grid, side)
    south, north, west, east = found["limits"]
    coasts = Coastlines.load()
    lines = list(coasts.lines) if found["globe"] else coasts.within(west, east, south, north)
    points = np.concatenate([*lines, np.zeros((0, 2))])
    return packed(points.T, COAST_DECIMALS) | {"ends": np.cumsum([len(line) for line in lines]).tolist()}


def _land(fields: MapData, side: int) -> str | None:
    """Return 1 for each (joined) cell of land, whose contour is the coast of a simulated planet; None if not drawn."""
    if fields.land is None or fields.earth or isinstance(fields.grid, Points):
        return None
    return _compressed((joined_cells(fields.land, side) > 0.5).astype(np.uint8))


def _middles(axis: np.ndarray, side: int) -> np.ndarray:
    return np.array([axis[k : k + side].mean() for k in range(0, len(axis), side)])


def _spacing(axis: np.ndarray) -> float:
    return float(np.ptp(axis)) / (len(axis) - 1) if len(axis) > 1 else 1.0


def _west(longitudes: np.ndarray) -> float:
    """Return the longitude after the widest gap between neighbours, from -180 to 180."""
    ordered = np.unique(longitudes % 360)
    gaps = np.diff(ordered, append=ordered[0] + 360)
    west = ordered[(int(gaps.argmax()) + 1) % len(ordered)]
    return float((west + 180) % 360 - 180)
