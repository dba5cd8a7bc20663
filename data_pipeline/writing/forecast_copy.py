"""ForecastCopy: a copy of a NetCDF file with other values in some of its fields, to write corrected forecasts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.common.errors import DiskFullError, InputError
from data_pipeline.common.files import atomic_path, disk_error
from data_pipeline.common.messages import format_size
from data_pipeline.formats.cf.block import FieldBlock
from data_pipeline.formats.cf.cf_variables import NameMap
from data_pipeline.formats.cf.geometry import Geometry
from data_pipeline.formats.cf.positions import compact
from data_pipeline.formats.loaded import LOADED_BYTES
from data_pipeline.formats.netcdf.file import NetCDFFile, library_lock
from data_pipeline.formats.netcdf.netcdf_catalog import NetCDFCatalog
from data_pipeline.grid import COORDINATE_TOLERANCE
from data_pipeline.task import Variable
from data_pipeline.writing.product import Product, ProductVariable
from data_pipeline.writing.value_packing import FILL, LIMITS, ValuePacking

FIELD = np.dtype([("init", "i8"), ("lead", "i8"), ("number", "i8"), ("interval", "i8"), ("field", "i8")])
"""Start (seconds since 1970), lead time (minutes), member, interval (minutes) and position of a field."""


class ForecastCopy:
    """A copy of one file that is being written; `put` gives fields new values, in the units in which fields are read.

    Dimensions, coordinates, attributes, storage and all other values are those of the original. If new values do not
    fit the packing of their variable, the whole variable is packed anew, and `notes` says so.
    """

    def __init__(self, source: Path, copy: Any, blocks: Sequence[FieldBlock]) -> None:
        self.blocks, self.notes = tuple(blocks), list[str]()
        self.dataset = copy
        self._stack = ExitStack()
        self._writers = [_BlockWriter(source, copy, block, self._stack) for block in blocks]

    def fields(self, variable: Variable) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of each block that has fields of a variable, and the `FIELD`s of this variable."""
        for number, block in enumerate(self.blocks):
            if variable in block.variables:
                rows = np.empty(len(block.levels), FIELD)
                rows["init"], rows["lead"], rows["interval"] = block.times[:3]
                rows["number"], rows["field"] = block.numbers, np.arange(len(rows))
                yield number, rows[block.fields_of(variable)]

    def define_products(self, block: int, products: Sequence[Product]) -> None:
        """Define the variables of products of a block; all their values are missing."""
        with library_lock():
            self._writers[block].define_products(products)

    def put_product(self, block: int, field: int, product: Product, values: np.ndarray) -> None:
        """Write a product (H, W), in the units of the file, of the forecast that has `field` of a block."""
        with library_lock():
            self._writers[block].put_product(field, product, values)

    def put(self, block: int, fields: Sequence[int], values: np.ndarray) -> None:
        """Write some fields (n, H, W) of a block; NaN is missing."""
        with library_lock():
            self._writers[block].put(fields, values)

    def finish(self, attributes: Mapping[str, Any], of_variables: Mapping[int, Mapping[str, Any]]) -> None:
        """Write the waiting fields, then the attributes of the file and, by block, the attributes of variables."""
        with library_lock():
            for number, writer in enumerate(self._writers):
                self.notes += writer.finish()
                self.dataset[self.blocks[number].data.name].setncatts(dict(of_variables.get(number, {})))
            self.dataset.setncatts(dict(attributes))

    def close(self) -> None:
        """Discard the waiting fields."""
        self._stack.close()


@contextmanager
def copy_forecasts(
    source: Path, target: Path, variables: Collection[Variable], names: Mapping[str, str] | None = None
) -> Iterator[ForecastCopy]:
    """Yield a copy of a file in which fields of `variables` can be written; it gets its name `target` at the end."""
    blocks = [
        block
        for block in NetCDFCatalog.read_blocks(source, NameMap(names))
        if isinstance(block, FieldBlock) and {*block.variables} & {*variables}
    ]
    import netCDF4

    _refuse_full_disk(source, target)
    with atomic_path(target) as partial, ExitStack() as stack:
        try:
            with NetCDFFile.at(source).open() as original:
                copy = stack.enter_context(netCDF4.Dataset(partial, "w", format=original.data_model))
                copy.set_fill_off()
                copy_structure(original, copy, str(source))
                copy_values(original, copy)
            fields = ForecastCopy(source, copy, blocks)
            stack.callback(fields.close)
            yield fields
            with library_lock():
                stack.close()
        except RuntimeError as error:
            # The NetCDF library reports a full disk as an HDF error.
            raise InputError(
                f"cannot write {target} ({error}); check the space on the device and the folder's permissions"
            ) from None
        _check(partial, target)


def _refuse_full_disk(source: Path, target: Path) -> None:
    """Raise `DiskFullError` if a file as large as `source` does not fit.

    The NetCDF library reports a full disk late, and without the reason.
    """
    folder = next(each for each in target.absolute().parents if each.is_dir())
    free, size = shutil.disk_usage(folder).free, source.stat().st_size
    if free < size:
        raise DiskFullError(
            f"no space for {target}: it needs about {format_size(size)}, {folder} has {format_size(free)}; free some "
            "space or choose another path"
        )


def _check(partial: Path, target: Path) -> None:
    """Raise an error unless the file can be opened again, has variables and is not cut off."""
    file = NetCDFFile.at(partial)
    with file.open() as dataset:
        file.refuse_if_cut_off(dataset)
        if not dataset.variables:
            raise RuntimeError(f"{target} has no variables when read back; it was not kept")


class _BlockWriter:
    """Writes the fields of a block in the order and packing of the file.

    If a variable is packed in whole numbers, its fields wait in an unnamed temporary file until all are known, because
    the packing depends on their range.
    """

    def __init__(self, source: Path, copy: Any, block: FieldBlock, stack: ExitStack) -> None:
        self.block, self.stack = block, stack
        self.variable, self.path = copy[block.data.name], source
        self.folder = Path(copy.filepath()).parent
        self.packing = ValuePacking.of(self.variable.dtype, dict(block.data.attributes))
        self.columns = _file_columns(block)
        self.lowest, self.highest = np.inf, -np.inf
        self.spool: Any = None
        self.waiting: dict[int, int] = {}
        self.products: dict[str, ProductVariable] = {}
        self.product_dimensions: dict[str, tuple[str, list[str]]] = {}
        """The dimension of levels or thresholds, and all dimensions, of each variable of products."""
        self.memory: np.ndarray | None = None
        """The variable's stored values, with changes of `_write`: each write of the library takes 0.5 ms."""

    def put(self, fields: Sequence[int], values: np.ndarray) -> None:
        conversion = self.block.conversion
        numbers = (np.asarray(values, np.float64) - conversion.offset) / conversion.factor
        finite = numbers[np.isfinite(numbers)]
        if finite.size:
            self.lowest = min(self.lowest, float(finite.min()))
            self.highest = max(self.highest, float(finite.max()))
        if self.packing.fill is None and np.isnan(numbers).any():
            raise InputError(
                f"{self.block} has no _FillValue, so missing values cannot be written; add one to the input, for "
                f"instance with ncatted -a _FillValue,{self.block.data.name},c,b,-128 IN OUT"
            )
        if not self.packing.rounds:
            for field, stored in zip(fields, self.packing.pack(numbers), strict=True):
                self._write(field, stored)
            return
        try:
            if self.spool is None:
                self.spool = self.stack.enter_context(tempfile.TemporaryFile(dir=self.folder))  # noqa: SIM115
            for field, values in zip(fields, numbers, strict=True):
                slot = self.waiting.setdefault(field, len(self.waiting))
                self.spool.seek(slot * values.nbytes)
                self.spool.write(np.ascontiguousarray(values).data)
        except OSError as error:
            raise disk_error(error, self.folder) or error from None

    def define_products(self, products: Sequence[Product]) -> None:
        """Define variables with the dimensions of the block's, and their levels or thresholds in place of members."""
        dataset, data, header = self.variable.group(), self.block.data, self.block.header
        member = header.coordinate(data, "number") or header.coordinate(data, "quantile")
        of_times = {name for one in self.block.time.coordinates for name in one.dimensions}
        members = {*(member.dimensions if member else ())} & {*self.block.outer} - of_times
        coordinates = [name for name in data.coordinate_names if member is None or name != member.name]
        about = {"GRIB_shortName": self.block.short_name, **data.attributes}
        self.products = ProductVariable.of(data.name, products)
        for one in self.products.values():
            axis = one.axis
            while axis in dataset.dimensions and not (
                axis in dataset.variables and np.array_equal(dataset[axis][...], one.values)
            ):
                axis += "_b"
            if axis and axis not in dataset.dimensions:
                self._create(axis, "f8", (axis,), one.axis_attributes(about), {axis: len(one.values)})[...] = one.values
            names = [name for name in data.dimensions if name not in members]
            if axis:
                names.insert(min(map(data.dimensions.index, members or self.block.across), default=len(names)), axis)
            attributes = one.attributes(about) | ({"coordinates": " ".join(coordinates)} if coordinates else {})
            self._create(one.name, "f4", names, attributes, fill=FILL)[...] = FILL
            self.product_dimensions[one.name] = axis, names

    def _create(
        self, name: str, kind: str, dimensions: Sequence[str], attributes: Mapping[str, Any],
        sizes: Mapping[str, int] | None = None, fill: Any = None,
    ) -> Any:  # fmt: skip
        """Define dimensions and a variable of the copy, and return the variable."""
        dataset = self.variable.group()
        if name in dataset.variables:
            raise InputError(f"{self.path} has a variable {name} already; rename it, or leave out products")
        for dimension, size in (sizes or {}).items():
            dataset.createDimension(dimension, size)
        smaller = {} if dataset.data_model.startswith("NETCDF3") or fill is None else {"compression": "zlib"}
        created = dataset.createVariable(name, kind, dimensions, fill_value=fill, **smaller)
        created.set_auto_maskandscale(False)
        created.setncatts(dict(attributes))
        return created

    def put_product(self, field: int, product: Product, values: np.ndarray) -> None:
        own = self.products[product.suffix]
        axis, names = self.product_dimensions[own.name]
        position = self._position(field) | dict(zip((axis,), own.index(product), strict=False))
        key = tuple(position.get(name, slice(None)) for name in names)
        packing = ValuePacking.of(np.dtype("f4"), {"_FillValue": FILL})
        self.variable.group()[own.name][key] = self._arranged(packing.pack(values))

    def finish(self) -> list[str]:
        """Write the waiting fields; return notes on a new packing and on attributes that no longer hold."""
        notes, name = [], self.block.data.name
        self._flush()
        if not self.packing.fits(self.lowest, self.highest):
            notes.append(self._repack())
        shape = self.block.horizontal.grid.shape
        for field, slot in self.waiting.items():
            self.spool.seek(slot * 8 * int(np.prod(shape)))
            numbers = np.frombuffer(self.spool.read(8 * int(np.prod(shape))), np.float64).reshape(shape)
            self._write(field, self.packing.pack(numbers))
        self._flush()
        low, high = self.packing.limits
        ends = (np.array([self.lowest, self.highest]) - self.packing.offset) / self.packing.scale
        held = [key for key in LIMITS if key in self.variable.ncattrs()]
        if held and np.isfinite(ends).all() and (ends.min() < low or ends.max() > high):
            for key in held:
                self.variable.delncattr(key)
            notes.append(f"{name}: corrected values lie outside {' and '.join(held)}, which the output does not have")
        if np.isfinite(self.lowest) and "actual_range" in self.variable.ncattrs():
            self.variable.delncattr("actual_range")  # it describes the raw values
        return notes

    def _repack(self) -> str:
        """Choose a packing for corrected and uncorrected values, store the uncorrected values in it; return a note."""
        old, name = self.packing, self.block.data.name
        corrected = {*self.waiting}
        for field in range(len(self.block.levels)):
            if field not in corrected:
                values = old.unpack(np.asarray(stored_values(self.variable, self._key(field))))
                if np.isfinite(values).any():
                    self.lowest = min(self.lowest, float(np.nanmin(values)))
                    self.highest = max(self.highest, float(np.nanmax(values)))
        self.packing = old.widened(self.lowest, self.highest)
        for part in slabs(self.variable.shape, self.variable.dtype):
            values = old.unpack(np.asarray(stored_values(self.variable, part)))
            inside = np.where(np.isnan(values), np.nan, np.clip(values, self.lowest, self.highest))
            self.variable[part] = self._stored(self.packing.pack(inside))
        new = {"scale_factor": self.packing.scale, "add_offset": self.packing.offset}
        self.variable.setncatts({key: np.float64(value) for key, value in new.items()})
        for key in LIMITS:
            if key in self.variable.ncattrs():
                self.variable.delncattr(key)
        return (
            f"{name}: corrected values ({self.lowest:g} to {self.highest:g}) do not fit the packing of {self.path}; "
            f"the output has {self.variable.dtype} with the step {self.packing.scale:.3g} instead of {old.scale:.3g}"
        )

    def _write(self, field: int, stored: np.ndarray) -> None:
        """Write one field of stored values (H, W)."""
        values = self._stored(self._arranged(stored))
        if self.memory is None and self.variable.size * values.itemsize <= LOADED_BYTES:
            self.memory = np.asarray(stored_values(self.variable, ...))
        (self.variable if self.memory is None else self.memory)[self._key(field)] = values

    def _arranged(self, stored: np.ndarray) -> np.ndarray:
        """Return one field of stored values (H, W) in the file's order of rows and columns."""
        block = self.block
        rows = stored[::-1] if block.horizontal.south_first else stored
        own = rows.reshape(block.data.sizes(block.across)) if self.columns is None else rows[:, self.columns]
        order = [block.across.index(name) for name in block.data.dimensions if name in block.across]
        return np.ascontiguousarray(own.transpose(order))

    def _flush(self) -> None:
        """Write the values in memory to the file."""
        if self.memory is not None:
            self.variable[...] = self.memory
            self.memory = None

    def _stored(self, values: np.ndarray) -> np.ndarray:
        return values.view(self.variable.dtype) if values.dtype.kind == "u" else values

    def _position(self, field: int) -> dict[str, int]:
        """Return the index of a field along each dimension, except the dimensions of its cells."""
        index = np.unravel_index(field, self.block.shape)
        return {name: int(at) for name, at in zip(self.block.outer, index, strict=True)}

    def _key(self, field: int) -> tuple[Any, ...]:
        """Return the index of a field in the variable, with all its cells."""
        position = self._position(field)
        return tuple(position.get(name, slice(None)) for name in self.block.data.dimensions)


def _file_columns(block: FieldBlock) -> Any:
    """Return the grid's column of each column in the file; None for points.

    A file may repeat its first column at the end.
    """
    if len(block.across) < 2 or block.horizontal.grid.shape[1] == 1 < len(block.horizontal.columns):
        return None
    columns = block.horizontal.columns
    found = np.full(block.data.sizes(block.across)[1], -1)
    found[columns] = np.arange(len(columns))
    if (found < 0).any():
        geometry = Geometry.of(block.header, block.data)
        assert geometry is not None
        assert geometry.x.values is not None
        there = geometry.x.values[columns].astype(np.float64)
        for k in np.flatnonzero(found < 0):
            apart = abs((there - float(geometry.x.values[k]) + 180) % 360 - 180)
            assert apart.min() <= COORDINATE_TOLERANCE
            found[k] = int(apart.argmin())
    return compact(found)


SLAB_BYTES = 1 << 25
"""Bytes of a variable that are copied at a time."""
_CODECS = ("zlib", "zstd", "bzip2")


def copy_structure(source: Any, target: Any, place: str) -> None:
    """Define in the open file `target` all dimensions, variables, groups and attributes of the open file `source`.

    `place` names the file for messages. Types that a file defines itself (compound, enumeration, ragged) raise
    `InputError`.
    """
    target.setncatts(_attributes(source))
    for name, dimension in source.dimensions.items():
        target.createDimension(name, None if dimension.isunlimited() else len(dimension))
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
        options = {} if plain else _storage(variable)
        own = target.createVariable(name, kind, variable.dimensions, fill_value=fill, **options)
        own.set_auto_maskandscale(False)
        own.setncatts(attributes)
    for name, group in source.groups.items():
        copy_structure(group, target.createGroup(name), place)


def copy_values(source: Any, target: Any) -> None:
    """Copy the stored values of all variables."""
    for name, variable in source.variables.items():
        chunks = variable.chunking()
        for part in slabs(variable.shape, variable.dtype, chunks if isinstance(chunks, list) else ()):
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


def _storage(variable: Any) -> dict[str, Any]:
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
        options["chunksizes"] = chunks
    if quantized := variable.quantization():
        options |= {"significant_digits": quantized[0], "quantize_mode": quantized[1]}
    return options
