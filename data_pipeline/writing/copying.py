"""Copy a NetCDF file variable by variable; some variables can get other values, packing or numbers of members."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError

SLAB_BYTES = 1 << 25
"""Bytes of a variable that are copied at a time."""
_CODECS = ("zlib", "zstd", "bzip2")


def copy_structure(source: Any, target: Any, sizes: Mapping[str, int] | None = None, place: str = "") -> None:
    """Define in the open file `target` all dimensions, variables, groups and attributes of the open file `source`.

    `sizes` gives new sizes to some dimensions. `place` names the file for messages. Types that a file defines itself
    (compound, enumeration, ragged) raise `InputError`.
    """
    target.setncatts(_attributes(source))
    for name, dimension in source.dimensions.items():
        size = (sizes or {}).get(name, len(dimension))
        target.createDimension(name, None if dimension.isunlimited() else size)
    for name, variable in source.variables.items():
        kind = str if variable.dtype is str else variable.datatype
        if not (isinstance(kind, np.dtype) or kind is str):
            raise InputError(
                f"{place} ({name}) has a type of its own, which correct cannot copy; leave it out, for instance with "
                f"ncks -x -v {name} IN OUT"
            )
        attributes = _attributes(variable)
        fill = attributes.pop("_FillValue", None)
        plain = source.data_model.startswith("NETCDF3") or kind is str
        options = {} if plain else _storage(variable, sizes or {})
        own = target.createVariable(name, kind, variable.dimensions, fill_value=fill, **options)
        own.set_auto_maskandscale(False)
        own.setncatts(attributes)
    for name, group in source.groups.items():
        copy_structure(group, target.createGroup(name), sizes, place)


def copy_values(source: Any, target: Any, without: Collection[str] = ()) -> None:
    """Copy the stored values of all variables except the variables `without` in the file's root group."""
    for name, variable in source.variables.items():
        if name not in without:
            for part in slabs(variable.shape, variable.dtype, _chunks(variable)):
                target[name][part] = stored_values(variable, part)
    for name, group in source.groups.items():
        copy_values(group, target[name])


def stored_values(variable: Any, part: Any) -> Any:
    """Return the values as stored in the file: packed, with fill values, and texts as single letters."""
    variable.set_auto_maskandscale(False)
    if variable.dtype == "S1":
        variable.set_auto_chartostring(False)
    return variable[part]


def slabs(shape: Sequence[int], kind: Any, chunks: Sequence[int] = ()) -> Iterator[tuple[slice, ...]]:
    """Yield parts that together cover an array; a part has about `SLAB_BYTES` bytes at most, and whole `chunks`.

    >>> list(slabs((3, 2**23), np.dtype("f4")))[:2]
    [(slice(0, 1, None),), (slice(1, 2, None),)]
    """
    if 0 in shape:
        return
    size = kind.itemsize if isinstance(kind, np.dtype) else 64
    whole = [size * int(np.prod(shape[axis:], dtype=np.int64)) for axis in range(len(shape) + 1)]
    axis = next(k for k, count in enumerate(whole) if count <= SLAB_BYTES or k == len(shape))
    steps = []
    for k in range(axis):
        step = max(1, SLAB_BYTES // max(whole[k + 1], 1)) if k == axis - 1 else 1
        chunk = chunks[k] if chunks else 1
        steps.append(min(shape[k], step + -step % chunk))
    starts = [range(0, shape[k], steps[k]) for k in range(axis)]
    for at in product(*starts):
        yield tuple(slice(first, min(first + step, n)) for first, step, n in zip(at, steps, shape, strict=False))


def _attributes(holder: Any) -> dict[str, Any]:
    return {name: holder.getncattr(name) for name in holder.ncattrs()}


def _chunks(variable: Any) -> Sequence[int]:
    found = variable.chunking()
    return found if isinstance(found, list) else ()


def _storage(variable: Any, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the options of `createVariable` that keep the storage (compression, chunks) of a NetCDF-4 variable."""
    options: dict[str, Any] = {"endian": variable.endian()}
    filters = variable.filters() or {}
    if codec := next((name for name in _CODECS if filters.get(name)), None):
        options |= {"compression": codec, "complevel": filters["complevel"]}
    options |= {name: bool(filters.get(name)) for name in ("shuffle", "fletcher32")}
    chunks = variable.chunking()
    if chunks == "contiguous":
        options["contiguous"] = variable.ndim > 0
    elif chunks:
        own = [min(c, sizes.get(name, c)) for c, name in zip(chunks, variable.dimensions, strict=True)]
        options["chunksizes"] = own
    if quantized := variable.quantization():
        options |= {"significant_digits": quantized[0], "quantize_mode": quantized[1]}
    return options
