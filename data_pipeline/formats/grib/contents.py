"""What is in GRIB files, in words: to see before a long run that an archive is what it should be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import Paths, expand_paths
from data_pipeline.common.messages import format_size, format_values
from data_pipeline.formats.grib.audit import Audit
from data_pipeline.formats.grib.cache import table_of
from data_pipeline.formats.grib.census import Census
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.table import Table

LINES = 8
"""Files that lack messages, and fields that are there twice, that are described; of the others, the number is said."""
TYPES = {"an": "analyses", "fc": "forecasts", "cf": "control forecasts", "pf": "perturbed forecasts"}


def summarize_files(paths: Paths) -> str:
    """Describe the files: what is there, what is missing in between, what is there twice, what is damaged.

    However many files there are, the messages of a few are held at a time: of those that have starts in common.
    """
    census, damaged = Census(), []
    for path in expand_paths(paths):
        try:
            census.add(table_of(path))
        except InputError as error:
            damaged.append(f"{'damaged':<12} {error}")
    return "\n".join([*(_describe(census) if census.paths else ()), *damaged])


def _describe(census: Census) -> list[str]:
    lacks: dict[Path, str] = {}
    repeats: list[str] = []
    repeated = 0
    for group in census.groups():
        audit = Audit.of([table_of(path) for path in group], census)
        lacks |= {table.path: _lack(audit, table, places) for table, places in audit.lacks()}
        repeats += islice(audit.repeats(), LINES - len(repeats))
        repeated += len(audit.repeated)
    expected = sum(map(census.places, census.names))
    gaps = expected - (census.messages - repeated)
    decoded = sum(4 * kind.layout.rows * kind.layout.columns * count for kind, count in census.count_of.items())
    types, versions = (_several(census.counts(name)) for name in ("data_type", "version"))
    starts, steps = _moments(census.values("init")), census.values("step")
    lines = {
        "files": f"{len(census.paths):,}, {format_size(census.bytes)}",
        "messages": f"{census.messages:,}, {format_size(decoded)} when decoded",
        "types": ", ".join(f"{TYPES.get(k, 'others')} ({k}) {n:,}" for k, n in types.items()),
        "versions": ", ".join(f"expver {k or 'unknown'} {n:,}" for k, n in versions.items()),
        "variables": _variables(census.kinds),
        "starts": f"{len(starts):,}, {starts[0]} to {starts[-1]} UTC",
        "lead times": f"{format_values(steps[steps >= 0] / 60)} h",
        "members": format_values(census.values("number")),
        "grid": _grids(census),
        "missing": f"{gaps:,} of {expected:,}" if gaps else "none",
        "repeated": f"{repeated:,}" if repeated else "none",
    }
    return [
        *(f"{name:<12} {text}" for name, text in lines.items() if text),
        *_first("lacks", [lacks[path] for path in census.paths if path in lacks], len(lacks)),
        *_first("repeats", repeats, repeated),
    ]


def _first(name: str, texts: Sequence[str], count: int) -> list[str]:
    """Return the first of `count` lines, and how many there are more."""
    shown = texts[:LINES]
    more = count - len(shown)
    return [f"{name:<12} {text}" for text in (*shown, *([f"... and {more:,} more"] if more else ()))]


def _lack(audit: Audit, table: Table, places: np.ndarray) -> str:
    """Say which messages a file lacks."""
    names = [audit.names[k] for k in np.unique(places["name"])]
    leads = np.unique(places["step"]) / 60
    return (
        f"{table.path}: {len(places):,} of {format_values(names)} "
        f"at starts {format_values(_moments(np.unique(places['init'])))}, "
        f"lead times {format_values(leads)} h, members {format_values(np.unique(places['number']))}"
    )


def _moments(seconds: np.ndarray) -> np.ndarray:
    return seconds.astype("datetime64[s]").astype("datetime64[m]")


def _several(counts: dict[str, int]) -> dict[str, int]:
    """Return counts that tell something: those of more than one kind."""
    return counts if len(counts) > 1 else {}


def _grids(census: Census) -> str:
    """Return the grid; where there are several, with a variable and a file of each."""
    found: dict[str, str] = {}
    for kind, path in census.first_file_of.items():
        found.setdefault(_grid(kind.layout), f"{kind} in {path}")
    return "; ".join(found if len(found) == 1 else (f"{grid} ({where})" for grid, where in found.items()))


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
    aloft = [f"{' '.join(names)} at {format_values(found)} hPa" for found, names in together.items()]
    return "; ".join([*([format_values(list(dict.fromkeys(others)))] if others else ()), *aloft])


def _grid(layout: Layout) -> str:
    try:
        return str(layout.grid) if layout.regular else f"{layout.grid_type}, which is not read"
    except InputError as error:
        return str(error)
