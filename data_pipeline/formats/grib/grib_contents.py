"""Describe the contents of GRIB files, so that users can check an archive before a long run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import Paths, expand_paths
from data_pipeline.common.messages import format_size, format_values
from data_pipeline.formats.grib.audit import Audit, Census
from data_pipeline.formats.grib.cache import table_of
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.kind import conversion_of, describe_left_out
from data_pipeline.formats.grib.names import MessageNames
from data_pipeline.formats.grib.table import Table
from data_pipeline.formats.variables import describe_variables
from data_pipeline.variables.meaning import INSTANT, UNKNOWN
from data_pipeline.variables.parameters import PARAMETERS
from data_pipeline.variables.units import Conversion

MAX_LINES = 8
"""Most incomplete files, and most repeated fields, that are described; the others are only counted."""
TYPES = {"an": "analyses", "fc": "forecasts", "cf": "control forecasts", "pf": "perturbed forecasts"}


def summarize_files(paths: Paths, names: Mapping[str, str] | None = None) -> str:
    """Return a description of the files: their fields, missing and repeated messages, damaged files.

    `names` are the user's names, as in `MessageNames`. Only messages of files with common starts are in memory at once.
    """
    census, damaged = Census(), []
    for path in expand_paths(paths):
        try:
            census.add(table_of(path))
        except InputError as error:
            damaged.append(f"{'damaged':<12} {error}")
    own_names = MessageNames(names or {})
    return "\n".join([*(_describe(census, own_names) if census.paths else ()), *damaged])


def _describe(census: Census, names: MessageNames) -> list[str]:
    lacking: dict[Path, str] = {}
    repeats: list[str] = []
    repeated = further_intervals = 0
    for group in census.groups():
        audit = Audit.of([table_of(path) for path in group], census)
        lacking |= {table.path: _describe_missing(audit, table, slots) for table, slots in audit.missing_by_file()}
        repeats += islice(audit.describe_repeated(), MAX_LINES - len(repeats))
        repeated += len(audit.repeated)
        further_intervals += audit.further_intervals
    expected = sum(map(census.expected, census.names))
    gaps = expected - (census.fields - repeated - further_intervals)
    decoded = sum(4 * kind.layout.rows * kind.layout.columns * count for kind, count in census.count_of.items())
    types, versions = (census.counts(attrgetter(name)) for name in ("data_type", "version"))
    left_out = describe_left_out(census.left_out)
    if not census.fields:
        return [f"{'files':<12} {len(census.paths):,}, {format_size(census.bytes)}", f"{'left out':<12} {left_out}"]
    starts, steps = _moments(census.values("init")), census.values("step")
    lines = {
        "files": f"{len(census.paths):,}, {format_size(census.bytes)}",
        "messages": f"{census.messages:,}, {format_size(decoded)} when decoded",
        "types": ", ".join(f"{TYPES.get(k, 'others')} ({k}) {n:,}" for k, n in types.items() if len(types) > 1),
        "versions": ", ".join(f"expver {k or 'unknown'} {n:,}" for k, n in versions.items() if len(versions) > 1),
        "variables": describe_variables(names.variable(kind) or str(kind) for kind in census.kinds),
        "intervals": _intervals(census),
        "units": _units(census, names),
        "left out": left_out and f"{left_out}: they are no forecasts, members or analyses",
        "starts": f"{len(starts):,}, {starts[0]} to {starts[-1]} UTC",
        "lead times": f"{format_values(steps[steps >= 0] / 60)} h",
        "members": format_values(census.values("number")),
        "grid": _grids(census),
        "missing": f"{gaps:,} of {expected:,}" if gaps else "no field",
        "repeated": f"{repeated:,}" if repeated else "none",
    }
    return [
        *(f"{name:<12} {text}" for name, text in lines.items() if text),
        *_first("lacks", [lacking[path] for path in census.paths if path in lacking], len(lacking)),
        *_first("repeats", repeats, repeated),
    ]


def _first(name: str, texts: Sequence[str], count: int) -> list[str]:
    """Return the first `MAX_LINES` of `count` lines, and a line with the number of the others."""
    shown = texts[:MAX_LINES]
    more = count - len(shown)
    return [f"{name:<12} {text}" for text in (*shown, *([f"... and {more:,} more"] if more else ()))]


def _describe_missing(audit: Audit, table: Table, slots: np.ndarray) -> str:
    names = [audit.names[k] for k in np.unique(slots["name"])]
    leads = np.unique(slots["step"]) / 60
    return (
        f"{table.path}: {len(slots):,} of {format_values(names)} "
        f"at starts {format_values(_moments(np.unique(slots['init'])))}, "
        f"lead times {format_values(leads)} h, members {format_values(np.unique(slots['number']))}"
    )


def _moments(seconds: np.ndarray) -> np.ndarray:
    return seconds.astype("datetime64[s]").astype("datetime64[m]")


def _intervals(census: Census) -> str:
    """Return a text with the intervals of all variables that are not instantaneous."""
    texts = []
    for name in census.names:
        minutes, since_start = census.intervals[name]
        if (minutes == INSTANT).all():
            continue
        hours = f"{format_values(minutes[minutes >= 0] / 60)} h" if (minutes >= 0).any() else ""
        unknown = "unknown" if (minutes == UNKNOWN).any() else ""
        texts.append(f"{name} {'since the start' if since_start else ' or '.join(filter(None, (hours, unknown)))}")
    return ", ".join(texts)


def _units(census: Census, names: MessageNames) -> str:
    """Return a text on the units that are converted when fields are read."""
    found: dict[str, None] = {}
    for kind in census.kinds:
        variable = names.variable(kind)
        wanted = variable and PARAMETERS[variable.name].units if variable and variable.name in PARAMETERS else None
        if variable and wanted and (to := conversion_of(kind, variable, wanted)) != Conversion():
            how = f"converted to {wanted}" if to else f"cannot be converted to {wanted}"
            found[f"{variable.name} in {kind.units}, {how}"] = None
    return "; ".join(found)


def _grids(census: Census) -> str:
    """Return a text on the grid; on several grids, each with an example of a variable and a file."""
    found: dict[str, str] = {}
    for kind, path in census.first_file_of.items():
        found.setdefault(_grid(kind.layout), f"{kind} in {path}")
    return "; ".join(found if len(found) == 1 else (f"{grid} ({where})" for grid, where in found.items()))


def _grid(layout: Layout) -> str:
    try:
        return str(layout.grid) if layout.readable else f"{layout.grid_type}, which cannot be read"
    except InputError as error:
        return str(error)
