"""What is in NetCDF files, in words: to see before a long run that an archive is what it should be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import Paths, expand_paths
from data_pipeline.common.messages import format_size, format_values
from data_pipeline.formats.netcdf.block import Block, Refused
from data_pipeline.formats.netcdf.catalog import blocks_of
from data_pipeline.formats.netcdf.names import Names
from data_pipeline.task import Variable


def inventory(paths: Paths, *, names: Mapping[str, str] | None = None) -> str:
    """Describe the files: what is there, what is missing in between or twice, what cannot be read and why."""
    files = expand_paths(paths)
    blocks: list[Block] = []
    faults: list[str] = []
    for path in files:
        found, wrong = _sorted(path, Names(names))
        blocks += found
        faults += wrong
    lines = {"files": f"{len(files):,}, {format_size(sum(path.stat().st_size for path in files))}"}
    lines |= _describe(blocks) if blocks else {}
    return "\n".join([f"{name:<12} {text}" for name, text in [*lines.items(), *(("not read", f) for f in faults)]])


def unusable(paths: Paths, *, names: Mapping[str, str] | None = None) -> dict[Path, str]:
    """Return the files of which nothing can be read, with the reason."""
    found = {path: _sorted(path, Names(names)) for path in expand_paths(paths)}
    return {path: faults[0] for path, (blocks, faults) in found.items() if faults and not blocks}


def _sorted(path: Path, names: Names) -> tuple[list[Block], list[str]]:
    """Return what can be read of a file, and why the rest cannot."""
    blocks: list[Block] = []
    faults: list[str] = []
    try:
        found = blocks_of(path, names)
    except InputError as error:
        return [], [str(error)]
    for block in found:
        if isinstance(block, Refused):
            faults.append(block.reason)
        elif reason := _unreadable(block):
            faults.append(reason)
        else:
            blocks.append(block)
    return blocks, faults


def _unreadable(block: Block) -> str | None:
    """Return why the units or the times of a variable cannot be read; fields that never change need no time."""
    try:
        if block.clock.coordinates:
            _ = block.times
        _ = block.scale
    except InputError as error:
        return str(error)
    return None


def _describe(blocks: Sequence[Block]) -> dict[str, str]:
    fields = sum(len(block.levels) for block in blocks)
    values = sum(len(block.levels) * int(np.prod(block.horizontal.grid.shape)) for block in blocks)
    variables = [variable for block in blocks for variable in block.variables if variable]
    dated = [block for block in blocks if block.clock.coordinates]
    lines = {
        "fields": f"{fields:,}, {format_size(4 * values)} when decoded",
        "variables": _variables(variables),
        "called": _called(blocks),
    }
    if dated:
        starts = np.unique(np.concatenate([block.times[0] for block in dated])).astype("datetime64[s]")
        leads = np.unique(np.concatenate([block.times[1] for block in dated]))
        first, last = (time.astype("datetime64[m]") for time in (starts[0], starts[-1]))
        lines |= {
            "starts": f"{len(starts):,}, {first} to {last} UTC",
            "lead times": f"{format_values(leads[leads >= 0] / 60)} h",
            "members": format_values(np.unique(np.concatenate([block.numbers for block in dated]))),
        }
    different, expected = _places(dated)
    held = sum(len(block.levels) for block in dated)
    return lines | {
        "grid": "; ".join(dict.fromkeys(str(block.horizontal.grid) for block in blocks)),
        "missing": f"{expected - different:,} of {expected:,}" if expected > different else "none",
        "repeated": f"{held - different:,}" if held > different else "none",
    }


def _places(blocks: Iterable[Block]) -> tuple[int, int]:
    """Count the places in the cubes of all variables that are filled, and those that should be.

    Every start, lead time and member that a variable has should be there in every combination.
    """
    places: dict[tuple[str, int], list[np.ndarray]] = {}
    for block in blocks:
        rows = np.stack([*block.times, block.numbers])
        for level in np.unique(block.levels).tolist():
            places.setdefault((block.short_name, level), []).append(rows[:, block.levels == level])
    filled = expected = 0
    for parts in places.values():
        rows = np.unique(np.concatenate(parts, axis=1), axis=1)
        filled += rows.shape[1]
        expected += int(np.prod([len(np.unique(axis)) for axis in rows]))
    return filled, expected


def _variables(variables: Iterable[Variable]) -> str:
    """Return the names of all variables, those on the same pressure levels together."""
    levels: dict[str, set[int]] = {}
    for variable in variables:
        levels.setdefault(variable.name, set()).add(variable.level)
    together: dict[tuple[int, ...], list[str]] = {}
    for name, found in levels.items():
        together.setdefault(tuple(sorted(found, reverse=True)), []).append(name)
    return "; ".join(
        " ".join(names) if at == (0,) else f"{' '.join(names)} at {format_values(at)} hPa"
        for at, names in together.items()
    )


def _called(blocks: Iterable[Block]) -> str:
    """Return what the files call variables by names of their own."""
    pairs = {block.short_name: block.entry.name for block in blocks if block.entry.name != block.short_name}
    return ", ".join(f"{name} is {own}" for name, own in pairs.items()) or "by their shortNames"
