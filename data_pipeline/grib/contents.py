"""What is in GRIB files, in words: to see before a long run that an archive is what it should be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from data_pipeline.errors import InputError
from data_pipeline.grib.cache import table_of
from data_pipeline.grib.layout import Layout
from data_pipeline.grib.paths import Paths, expand
from data_pipeline.grib.table import Kind, Table, common_kinds

SHOWN = 24
"""A longer list of values is shown by its ends."""


def inventory(paths: Paths) -> str:
    """Describe the files: what is there, what is missing in between, what is there twice, what is damaged."""
    tables, damaged = [], []
    for path in expand(paths):
        try:
            tables.append(table_of(path))
        except InputError as error:
            damaged.append(f"{'damaged':<12} {error}")
    return "\n".join([*(_describe(tables) if tables else ()), *damaged])


def _describe(tables: Sequence[Table]) -> list[str]:
    kinds, of_records = common_kinds(tables)
    kind = np.concatenate(of_records)
    rows = np.concatenate([table.records for table in tables])
    points = np.array([k.layout.rows * k.layout.columns for k in kinds])
    starts = rows["init"].astype("datetime64[s]").astype("datetime64[m]")
    different, expected = _places(kinds, kind, rows)
    lines = {
        "files": f"{len(tables):,}, {_size(sum(table.path.stat().st_size for table in tables))}",
        "messages": f"{len(rows):,}, {_size(4 * int(points[kind].sum()))} when decoded",
        "variables": _variables(kinds),
        "starts": f"{len(np.unique(starts)):,}, {starts.min()} to {starts.max()} UTC",
        "lead times": f"{_values(np.unique(rows['step'][rows['step'] >= 0]) / 60)} h",
        "members": _values(np.unique(rows["number"])),
        "grid": "; ".join(dict.fromkeys(_grid(k.layout) for k in kinds)),
        "missing": f"{expected - different:,} of {expected:,}" if expected > different else "none",
        "repeated": f"{len(rows) - different:,}" if len(rows) > different else "none",
    }
    return [f"{name:<12} {text}" for name, text in lines.items()]


def _places(kinds: Sequence[Kind], kind: np.ndarray, rows: np.ndarray) -> tuple[int, int]:
    """Count the places in the cubes of all variables that are filled, and those that should be.

    Every start, lead time and member that a variable has should be there in every combination.
    """
    names = list(dict.fromkeys(map(str, kinds)))
    name = np.array([names.index(str(k)) for k in kinds])[kind]
    filled = expected = 0
    for k in range(len(names)):
        mine = rows[name == k]
        places = [mine[key] for key in ("init", "step", "number")]
        filled += np.unique(np.stack(places), axis=1).shape[1]
        expected += int(np.prod([len(np.unique(axis)) for axis in places]))
    return filled, expected


def _variables(kinds: Iterable[Kind]) -> str:
    """Return the names of all fields, those on the same pressure levels together."""
    levels: dict[str, list[int]] = {}
    others = []
    for kind in kinds:
        if kind.variable and kind.variable.level:
            levels.setdefault(kind.short_name, []).append(kind.variable.level)
        else:
            others.append(str(kind))
    together: dict[tuple[int, ...], list[str]] = {}
    for name, found in levels.items():
        together.setdefault(tuple(sorted(set(found), reverse=True)), []).append(name)
    aloft = [f"{' '.join(names)} at {_values(found)} hPa" for found, names in together.items()]
    return "; ".join([*([_values(list(dict.fromkeys(others)))] if others else ()), *aloft])


def _values(values: Sequence[object] | np.ndarray) -> str:
    texts = [f"{value:g}" if isinstance(value, int | float | np.number) else str(value) for value in values]
    if len(texts) > SHOWN:
        texts = [*texts[: SHOWN // 2], "...", *texts[-2:], f"({len(texts)} in all)"]
    return " ".join(texts)


def _grid(layout: Layout) -> str:
    try:
        return str(layout.grid) if layout.regular else f"{layout.grid_type}, which is not read"
    except InputError as error:
        return str(error)


def _size(count: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:,} bytes"
