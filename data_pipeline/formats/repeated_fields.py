"""Fields that occur twice in an archive: compared once, and never again while the files stay as they are.

Analyses of several members are refused without a comparison.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import CACHE_ERRORS, atomic_write, cache_folder, describe_state
from data_pipeline.common.identity import hash_of
from data_pipeline.formats.catalog import Catalog
from data_pipeline.formats.reader_versions import READER_VERSIONS
from data_pipeline.formats.zarr.detection import is_references


def refuse_contradictions(catalog: Catalog, pairs: np.ndarray) -> None:
    """Raise `InputError` for the first of the `pairs` (n, 2) of rows with equal variable, time and member that differ.

    Comparing reads both fields of each pair. The result "all are equal" is kept in the cache folder, under a hash of
    the catalog and of the state of its files; an archive in Zarr is compared at every opening, because the state of its
    chunks is not known.
    """
    if not len(pairs):
        return
    verdict = _verdict_file(catalog, pairs)
    if verdict is not None and verdict.exists():
        return
    for first, second in pairs.tolist():
        catalog.refuse_contradiction(first, second)
    if verdict is not None:
        try:
            with atomic_write(verdict) as file:
                file.write(b"equal\n")
        except (*CACHE_ERRORS, InputError):
            return  # compared again at the next opening


def refuse_several_members(catalog: Catalog, rows: np.ndarray) -> None:
    """Raise `InputError` if some rows of a catalog, which are analyses, have several members of a variable."""
    part = catalog.rows[rows]
    for variable in np.unique(part["variable"]).tolist():
        mine = np.flatnonzero(part["variable"] == variable)
        numbers, first = np.unique(part["number"][mine], return_index=True)
        if len(numbers) > 1:
            one, other = (catalog.place(int(rows[mine[k]])) for k in first[:2])
            raise InputError(
                f"{one} and {other} hold {catalog.wanted[variable]} of members {numbers[0]} and {numbers[1]}, "
                f"{len(numbers)} members in all, and the truth is one analysis; name files of one member, for instance "
                f"from grib_copy -w number={numbers[0]} of ecCodes or ncks -d number,0 of NCO"
            )


def _verdict_file(catalog: Catalog, pairs: np.ndarray) -> Path | None:
    if not all(isinstance(path, Path) and path.is_file() and not is_references(path) for path in catalog.paths):
        return None
    described = [type(catalog).__name__, repr(catalog.wanted), READER_VERSIONS, *map(describe_state, catalog.paths)]
    name = hash_of(catalog.rows.tobytes(), pairs.astype(np.int64).tobytes(), described)[:32]
    try:
        return cache_folder("grib").parent / "equal" / name
    except CACHE_ERRORS:
        return None
