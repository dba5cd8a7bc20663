"""Summary of the contents of CF files, to check an archive before a long run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import FileAddress, Paths, expand_addresses, total_bytes
from data_pipeline.common.messages import format_size, format_values
from data_pipeline.formats.cf.block import FieldBlock, RefusedVariable
from data_pipeline.formats.cf.cf_catalog import BlockCatalog
from data_pipeline.formats.cf.cf_variables import NameMap
from data_pipeline.formats.variables import describe_variables
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import UNKNOWN


def summarize_files(paths: Paths, *, catalog: type[BlockCatalog], names: Mapping[str, str] | None = None) -> str:
    """Return a description of the files: their fields, missing and repeated fields, and what cannot be read and why.

    `catalog` is the catalog class of their format.
    """
    files = expand_addresses(paths)
    blocks: list[FieldBlock] = []
    faults: list[str] = []
    for path in files:
        readable, reasons = _readable(catalog, path, NameMap(names))
        blocks += readable
        faults += reasons
    lines = {"files": f"{len(files):,}, {format_size(size) if (size := total_bytes(files)) else 'of unknown size'}"}
    lines |= _describe(blocks) if blocks else {}
    return "\n".join([f"{name:<12} {text}" for name, text in [*lines.items(), *(("not read", f) for f in faults)]])


def unreadable_files(
    paths: Paths, *, catalog: type[BlockCatalog], names: Mapping[str, str] | None = None
) -> dict[FileAddress, str]:
    """Return the files without any readable variable, with the reason."""
    found = {path: _readable(catalog, path, NameMap(names)) for path in expand_addresses(paths)}
    return {path: faults[0] for path, (blocks, faults) in found.items() if faults and not blocks}


def _readable(catalog: type[BlockCatalog], path: FileAddress, names: NameMap) -> tuple[list[FieldBlock], list[str]]:
    """Return the readable variables of a file, and for each unreadable variable the reason."""
    blocks: list[FieldBlock] = []
    faults: list[str] = []
    try:
        found = catalog.read_blocks(path, names)
    except InputError as error:
        return [], [str(error)]
    for block in found:
        if isinstance(block, RefusedVariable):
            faults.append(block.reason)
        elif reason := _fault(block):
            faults.append(reason)
        else:
            blocks.append(block)
    return blocks, faults


def _fault(block: FieldBlock) -> str | None:
    """Return why units or times of a variable cannot be read, or None; static fields need no time."""
    try:
        if block.time.coordinates:
            _ = block.times
        _ = block.conversion
    except InputError as error:
        return str(error)
    return None


def _describe(blocks: Sequence[FieldBlock]) -> dict[str, str]:
    fields = sum(len(block.levels) for block in blocks)
    values = sum(len(block.levels) * int(np.prod(block.horizontal.grid.shape)) for block in blocks)
    variables = [variable for block in blocks for variable in block.variables if variable]
    dated = [block for block in blocks if block.time.coordinates]
    lines = {
        "fields": f"{fields:,}, {format_size(4 * values)} when decoded",
        "variables": describe_variables(variables),
        "called": _called(blocks),
    }
    if dated:
        starts = np.unique(np.concatenate([block.times.starts for block in dated])).astype("datetime64[s]")
        leads = np.unique(np.concatenate([block.times.leads for block in dated]))
        first, last = (time.astype("datetime64[m]") for time in (starts[0], starts[-1]))
        lines |= {
            "starts": f"{len(starts):,}, {first} to {last} UTC",
            "lead times": f"{format_values(leads[leads >= 0] / 60)} h",
            "members": format_values(np.unique(np.concatenate([block.numbers for block in dated]))),
        }
        lines |= {"intervals": text} if (text := _intervals(dated)) else {}
        lines |= {"times": _displaced(dated)} if any(block.times.displaced for block in dated) else {}
    filled, expected = _count_combinations(dated)
    stored = sum(np.count_nonzero(block.stored) for block in dated)
    unwritten = fields - sum(np.count_nonzero(block.stored) for block in blocks)
    lines |= {"unwritten": f"{unwritten:,} fields whose chunks do not exist"} if unwritten else {}
    return lines | {
        "grid": "; ".join(dict.fromkeys(str(block.horizontal.grid) for block in blocks)),
        "missing": f"{expected - filled:,} of {expected:,}" if expected > filled else "no field",
        "repeated": f"{stored - filled:,}" if stored > filled else "none",
    }


def _intervals(blocks: Iterable[FieldBlock]) -> str:
    """Return a text with the processing over time and the intervals of all variables that are not instantaneous."""
    found: dict[str, set[int]] = {}
    for block in blocks:
        if (processing := block.variable(0).processing) != "instant":
            found.setdefault(f"{block.short_name} {processing}", set()).update(block.times.intervals.tolist())
    texts = []
    for name, lengths in found.items():
        known = [length / 60 for length in sorted(lengths) if length != UNKNOWN]
        unknown = "an unknown interval, which data.archive.intervals can state"
        parts = [*([f"{format_values(known)} h"] if known else []), *([unknown] if UNKNOWN in lengths else [])]
        texts.append(f"{name} over {' or '.join(parts)}")
    return "; ".join(texts)


def _displaced(blocks: Iterable[FieldBlock]) -> str:
    """Return a text on how many fields got the end of their interval as valid time instead of the file's time."""
    names = dict.fromkeys(block.short_name for block in blocks if block.times.displaced)
    count = sum(block.times.displaced for block in blocks)
    return f"{count:,} fields of {', '.join(names)} are valid at the end of their bounds, not at the file's time"


def _count_combinations(blocks: Iterable[FieldBlock]) -> tuple[int, int]:
    """Count the existing and the expected combinations of start, lead time and member of variables.

    A variable should have every combination of the starts, lead times and members that it has in any file; analyses are
    counted by themselves.
    """
    places: dict[tuple[Variable, bool], list[np.ndarray]] = {}
    for block in blocks:
        rows = np.stack([block.times.starts, block.times.leads, block.numbers])
        for level in np.unique(block.levels).tolist():
            own = block.variable(level), block.time.has_leads
            places.setdefault(own, []).append(rows[:, (block.levels == level) & block.stored])
    filled = expected = 0
    for parts in places.values():
        rows = np.unique(np.concatenate(parts, axis=1), axis=1)
        filled += rows.shape[1]
        expected += int(np.prod([len(np.unique(axis)) for axis in rows]))
    return filled, expected


def _called(blocks: Iterable[FieldBlock]) -> str:
    """Return a text with the variable names in the files that differ from the shortNames."""
    pairs = {block.short_name: block.data.name for block in blocks if block.data.name != block.short_name}
    return ", ".join(f"{name} is {own}" for name, own in pairs.items()) or "by their shortNames"
