"""One array of a Zarr store: its shape, chunks and missing values, and the values of a chunk."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Self

import numpy as np
from xarray.backends.zarr import FillValueCoder

from data_pipeline.common import identity
from data_pipeline.common.errors import InputError
from data_pipeline.formats.zarr.codecs import ChunkDecoder
from data_pipeline.formats.zarr.store import ZarrStore

_ABSENT = 2**64 - 1
"""Offset and length, in the index of a shard, of a chunk that was never written."""
_READ_FIELDS = 1 << 18
"""Fields of a store of which bytes are read for the fingerprint, if its chunks have many fields each."""


_STORED_VALUES = {"_FillValue", "missing_value", "valid_min", "valid_max", "valid_range"}
"""Attributes in the type of the stored values."""


@dataclass(frozen=True)
class Shards:
    """Chunks of an array that are stored together: `counts` of them along each axis, with an index of their places."""

    counts: tuple[int, ...]
    index: ChunkDecoder
    index_at_end: bool

    @property
    def index_size(self) -> int:
        """Bytes of the index: two numbers for each chunk, and a checksum if there is one."""
        return self.index.nbytes + (4 if self.index.filters else 0)


@dataclass(frozen=True, eq=False)
class ZarrArray:
    """An array as its metadata describe it; reads chunks by their position in the grid of chunks."""

    store: ZarrStore
    name: str
    shape: tuple[int, ...]
    dimensions: tuple[str, ...]
    attributes: Mapping[str, Any]
    decoder: ChunkDecoder
    key_prefix: tuple[str, ...]
    separator: str
    shards: Shards | None
    fill_value: Any
    version: int
    stamp: Any

    @classmethod
    def of(cls, store: ZarrStore, name: str, metadata: Mapping[str, Any], dtype: np.dtype, fill_value: Any) -> Self:
        """Return the array that `metadata` of format 2 or 3 describe; an unknown codec raises an `InputError`."""
        try:
            return cls._of(store, name, metadata, dtype, fill_value)
        except InputError as error:
            raise InputError(f"{store.path} ({name}) {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{store.path} ({name}) has metadata that cannot be interpreted ({type(error).__name__}: {error}); "
                "write the store again"
            ) from None

    @classmethod
    def _of(cls, store: ZarrStore, name: str, metadata: Mapping[str, Any], dtype: np.dtype, fill_value: Any) -> Self:
        attributes = dict(metadata.get("attributes") or {})
        shape, shards = tuple(metadata["shape"]), None
        if (meant := _meant_type(dtype, attributes)) != dtype:
            dtype, fill_value = meant, None if fill_value is None else _recast(fill_value, meant)
            attributes |= {name: _recast(attributes[name], meant) for name in _STORED_VALUES & attributes.keys()}
        if metadata["zarr_format"] == 2:
            dimensions = attributes.pop("_ARRAY_DIMENSIONS", None)
            decoder = ChunkDecoder.of_version_2(metadata, dtype)
            prefix: tuple[str, ...] = ()
            separator, file = metadata.get("dimension_separator") or ".", ".zarray"
        else:
            dimensions = metadata.get("dimension_names")
            if metadata["chunk_grid"]["name"] != "regular":
                raise InputError("has chunks of unequal sizes, which are not read; rewrite it with regular chunks")
            chunk = tuple(metadata["chunk_grid"]["configuration"]["chunk_shape"])
            codecs: Sequence[Mapping[str, Any]] = metadata["codecs"]
            if codecs[0]["name"] == "sharding_indexed":
                if len(codecs) > 1:
                    raise InputError("has compressed shards, which are not read; compress the chunks in them instead")
                settings = codecs[0]["configuration"]
                inner = tuple(settings["chunk_shape"])
                counts = tuple(n // k for n, k in zip(chunk, inner, strict=True))
                index = ChunkDecoder.of_version_3(settings["index_codecs"], (*counts, 2), np.dtype("u8"))
                shards = Shards(counts, index, settings.get("index_location", "end") == "end")
                chunk, codecs = inner, settings["codecs"]
            decoder = ChunkDecoder.of_version_3(codecs, chunk, dtype)
            encoding = metadata["chunk_key_encoding"]
            default = encoding["name"] == "default"
            separator = (encoding.get("configuration") or {}).get("separator", "/" if default else ".")
            prefix, file = ("c",) if default else (), "zarr.json"
        decoder.check()
        if dimensions is None or None in dimensions:
            dimensions = [f"{name} axis {k}" for k in range(len(shape))]
        stamp = store.stamp(f"{name}/{file}")
        return cls(
            store, name, shape, tuple(dimensions), attributes, decoder, prefix, separator, shards, fill_value,
            metadata["zarr_format"], stamp,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.store.path} ({self.name})"

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks along each axis."""
        return tuple(-(-n // k) for n, k in zip(self.shape, self.decoder.shape, strict=True))

    @property
    def missing_values(self) -> tuple[Any, ...]:
        """The values that stand for missing ones, besides NaN.

        They are `_FillValue` and `missing_value` of CF. In format 2 the fill value of the array is `_FillValue`, as
        xarray reads and writes it; in format 3 it is an ordinary value.
        """
        found = [self.attributes[name] for name in ("_FillValue", "missing_value") if name in self.attributes]
        values = [each for value in found for each in (value if isinstance(value, list) else [value])]
        if self.version == 2 and self.fill_value is not None:
            values.append(self.fill_value)
        decoded = [FillValueCoder.decode(v, self.decoder.dtype) if _is_encoded(v) else v for v in values]
        return tuple(dict.fromkeys(value for value in map(float, decoded) if not np.isnan(value)))

    @property
    def fills_with_missing(self) -> bool:
        """Whether a chunk that does not exist stands for missing values, and not for an ordinary number."""
        if self.fill_value is None:
            return False
        return bool(np.isnan(float(self.fill_value)) or float(self.fill_value) in self.missing_values)

    @property
    def stored_grid(self) -> tuple[int, ...]:
        """The number of stored keys along each axis: of chunks, or of shards."""
        return tuple(-(-n // k) for n, k in zip(self.grid, self.per_key, strict=True))

    @property
    def per_key(self) -> tuple[int, ...]:
        """The number of chunks that are stored together, along each axis."""
        return self.shards.counts if self.shards else (1,) * len(self.shape)

    def key(self, position: Sequence[int]) -> str:
        """Return the key of a chunk, or of the shard that holds it."""
        return self.stored_key([k // n for k, n in zip(position, self.per_key, strict=True)])

    def stored_key(self, place: Sequence[int]) -> str:
        """Return the key at a place in `stored_grid`."""
        return f"{self.name}/{self.separator.join((*self.key_prefix, *map(str, place))) or '0'}"

    def refuse_if_changed(self) -> None:
        """Raise an `InputError` if the metadata file of the array was rewritten since the store was opened."""
        file = ".zarray" if self.version == 2 else "zarr.json"
        if self.stamp is not None and self.store.stamp(f"{self.name}/{file}") != self.stamp:
            raise InputError(f"{self.store.path} has changed since it was opened; run again when it is complete")

    def chunk_bytes(self, position: Sequence[int], index: np.ndarray | None = None) -> bytes | None:
        """Return the stored bytes of a chunk, or None if it does not exist; `index` is that of its shard."""
        key = self.key(position)
        if not self.shards:
            return self.store.fetch(key)
        if index is None and (index := self.shard_index(position)) is None:
            return None
        inside = tuple(k % n for k, n in zip(position, self.shards.counts, strict=True))
        offset, length = (int(number) for number in index[inside])
        if offset == _ABSENT:
            return None
        found = self.store.fetch(key, offset, offset + length)
        if found is None or len(found) < length:
            raise self.damaged(position, "it is cut off")
        return found

    def shard_index(self, position: Sequence[int]) -> np.ndarray | None:
        """Return offset and length of each chunk of a shard, (..., 2); None if the shard does not exist."""
        assert self.shards
        size = self.shards.index_size
        part = (-size, None) if self.shards.index_at_end else (0, size)
        stored = self.store.fetch(self.key(position), *part)
        if stored is None:
            return None
        try:
            return self.shards.index.decode(stored)
        except ValueError as error:
            raise self.damaged(position, f"the index of the shard: {error}") from None

    def decode(self, position: Sequence[int], stored: bytes, out: np.ndarray | None = None) -> np.ndarray:
        """Return the values of a chunk from its bytes; `out` may be used for them."""
        try:
            return self.decoder.decode(stored, out)
        except ValueError as error:
            raise self.damaged(position, str(error)) from None

    def damaged(self, position: Sequence[int], reason: str) -> InputError:
        """Return the error for a chunk that cannot be decoded."""
        return InputError(
            f"{self.store.path} is damaged: chunk {self.key(position)} cannot be read ({reason}); fetch it again"
        )

    def existing_chunks(self) -> np.ndarray | None:
        """Return whether each chunk, or shard, exists, in their grid; None for a store at a URL."""
        if self.store.is_remote:
            return None
        axes = [range(n) for n in self.stored_grid]
        found = self.store.exist([self.stored_key(place) for place in product(*axes)])
        return np.array(found, bool).reshape(self.stored_grid)

    def content(self, arrays: int) -> list[str]:
        """Return what stands for the bytes of each stored key, at equal distances if the store has many in `arrays`."""
        count = math.prod(self.stored_grid)
        step = max(1, -(-count * arrays // self.store.most_keys))
        places = np.stack(np.unravel_index(np.arange(0, count, step), self.stored_grid), -1) if self.shape else [()]
        shape = [n * k for n, k in zip(self.decoder.shape, self.per_key, strict=True)]
        keys = [self.stored_key(place) for place in places]
        all_keys = arrays * len(keys) or 1
        fields = min(identity.field_count(shape), _READ_FIELDS // all_keys)
        return self.store.contents(keys, fields, identity.WHOLE_BYTES // all_keys)

    def read(self) -> np.ndarray:
        """Return all values; for coordinates."""
        out = np.empty(self.shape, self.decoder.dtype.newbyteorder("="))
        for position in np.ndindex(self.grid):
            starts = [k * n for k, n in zip(position, self.decoder.shape, strict=True)]
            window = tuple(slice(a, a + n) for a, n in zip(starts, self.decoder.shape, strict=True))
            target = out[window] if window else out
            stored = self.chunk_bytes(position)
            if stored is None:
                target[...] = self._unwritten(position, target.size)
            else:
                target[...] = self.decode(position, stored)[tuple(slice(n) for n in target.shape)]
        return out

    def _unwritten(self, position: Sequence[int], size: int) -> Any:
        """Return the value that stands for a chunk of a coordinate that does not exist, and warn.

        Writers omit chunks of zeros, such as a single lead time of 0 h. Several equal values are no coordinate and
        raise an `InputError`.
        """
        value = 0 if self.fill_value is None else self.fill_value
        if size > 1:
            raise InputError(
                f"{self} lacks its chunk {self.key(position)}, and the values of a coordinate differ; fetch it again"
            )
        warnings.warn(
            f"{self} lacks its chunk {self.key(position)}, for which Zarr gives {value} "
            f"{self.attributes.get('units', '')}; fetch it again if this is wrong",
            stacklevel=2,
        )
        return value


def _is_encoded(value: Any) -> bool:
    """Whether a `_FillValue` is text: xarray writes floating-point numbers to format 3 in base64."""
    return isinstance(value, str) and value not in ("NaN", "nan", "Infinity", "-Infinity")


def _meant_type(dtype: np.dtype, attributes: Mapping[str, Any]) -> np.dtype:
    """Return the type of the values that stored integers stand for.

    `_Unsigned` marks unsigned numbers in a signed type, and with the value false signed numbers in an unsigned one
    (NetCDF Users Guide, appendix A).
    """
    meant = {("i", "true"): "u", ("u", "false"): "i"}.get((dtype.kind, str(attributes.get("_Unsigned", "")).lower()))
    return np.dtype(dtype.str.replace(dtype.kind, meant)) if meant else dtype


def _recast(value: Any, dtype: np.dtype) -> Any:
    """Return a stored value, or a list of them, in another type of the same size: as uint8, -1 is 255."""
    return np.asarray(value).astype(np.int64).astype(dtype).tolist()
