"""One array of a Zarr store: its shape, chunks and missing values, and the values of a region."""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Self

import numpy as np
import zarr
from xarray.backends.zarr import FillValueCoder
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath

from data_pipeline.common import identity
from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.positions import compact
from data_pipeline.formats.zarr.zarr_store import Reading, ZarrStore

_ABSENT = 2**64 - 1
"""Offset, in the index of a shard, of a chunk that was never written."""
_READ_FIELDS = 1 << 18
"""Most fields of a store whose bytes are sampled for the fingerprint, if each chunk holds many fields."""
_STORED_VALUES = {"_FillValue", "missing_value", "valid_min", "valid_max", "valid_range"}
"""Attributes that have the type of the stored values."""
_INDEX_CODECS = (["bytes"], ["bytes", "crc32c"])
"""Codecs that are read in the index of a shard: no checksum, or CRC32C."""


@dataclass(frozen=True, eq=False)
class ZarrArray:
    """An array of a store, from its metadata; it keeps no file open, so that it can be sent to other processes.

    `chunks` is the shape of a chunk. `stored` is the shape of what one key holds: a shard, or a chunk without shards.
    """

    store: ZarrStore
    name: str
    metadata: Any
    dtype: np.dtype
    dimensions: tuple[str, ...]
    attributes: Mapping[str, Any]
    chunks: tuple[int, ...]
    stored: tuple[int, ...]
    fill_value: Any
    stamp: Any

    @classmethod
    def of(cls, store: ZarrStore, name: str, array: zarr.Array) -> Self:
        """Return the description of an open `zarr.Array`; an `InputError` if its layout is not supported."""
        attributes: dict[str, Any] = dict(array.attrs)
        metadata: Any = array.metadata
        dtype, fill_value = array.dtype, array.fill_value
        if (meant := _meant_type(dtype, attributes)) != dtype:
            dtype, fill_value = meant, None if fill_value is None else _recast(fill_value, meant)
            attributes |= {name: _recast(attributes[name], meant) for name in _STORED_VALUES & attributes.keys()}
        if metadata.zarr_format == 2:
            dimensions = attributes.pop("_ARRAY_DIMENSIONS", None)
        else:
            dimensions = metadata.dimension_names
        if dimensions is None or None in dimensions:
            dimensions = [f"{name} axis {k}" for k in range(array.ndim)]
        if reason := _refusal(metadata):
            raise InputError(f"{store.path} ({name}) has {reason}")
        return cls(
            store, name, metadata, dtype, tuple(dimensions), attributes, array.chunks,
            array.shards or array.chunks, fill_value, store.stamp(f"{name}/{_file(metadata)}"),
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.store.path} ({self.name})"

    @property
    def missing_values(self) -> tuple[Any, ...]:
        """The values that mark missing data, besides NaN.

        They are `_FillValue` and `missing_value` of CF. In format 2 the array's fill value is also a `_FillValue`, as
        xarray reads and writes it; in format 3 it is an ordinary value.
        """
        found = [self.attributes[name] for name in ("_FillValue", "missing_value") if name in self.attributes]
        values = [each for value in found for each in (value if isinstance(value, list) else [value])]
        if self.metadata.zarr_format == 2 and self.fill_value is not None:
            values.append(self.fill_value)
        decoded = [FillValueCoder.decode(v, self.dtype) if _is_encoded(v) else v for v in values]
        return tuple(dict.fromkeys(value for value in map(float, decoded) if not np.isnan(value)))

    @property
    def fills_with_missing(self) -> bool:
        """Whether a chunk that does not exist means missing values rather than an ordinary number."""
        if self.fill_value is None:
            return False
        return bool(np.isnan(float(self.fill_value)) or float(self.fill_value) in self.missing_values)

    @property
    def stored_grid(self) -> tuple[int, ...]:
        """The number of shards, or of chunks without shards, along each axis; each has one key."""
        return tuple(-(-n // k) for n, k in zip(self.metadata.shape, self.stored, strict=True))

    def key(self, place: Sequence[int]) -> str:
        """Return the key at a position in `stored_grid`."""
        return f"{self.store.group}{self.name}/{self.metadata.encode_chunk_key(tuple(map(int, place)))}"

    def existing_chunks(self) -> np.ndarray | None:
        """Return a mask of the shape `stored_grid`, true where the chunk or shard exists; None if unknown."""
        if (keys := self.store.keys(f"{self.store.group}{self.name}")) is None:
            return None
        found = [self.key(place) in keys for place in np.ndindex(self.stored_grid)]
        return np.array(found, bool).reshape(self.stored_grid)

    def content(self, arrays: int) -> list[str]:
        """Return a hash or checksum of each stored key for the fingerprint; `arrays` is the store's number of arrays.

        If the store has many keys, only keys at equal distances are used, which represent all.
        """
        count, most = math.prod(self.stored_grid), 1 << 11 if self.store.is_remote else 1 << 16
        step = max(1, -(-count * arrays // most))
        places = np.stack(np.unravel_index(np.arange(0, count, step), self.stored_grid), -1) if self.stored else [()]
        keys = [self.key(place) for place in places]
        all_keys = arrays * len(keys) or 1
        fields = min(identity.field_count(self.stored), _READ_FIELDS // all_keys)
        return self.store.contents(keys, fields, identity.WHOLE_BYTES // all_keys)

    def refuse_if_changed(self) -> None:
        """Raise an `InputError` if the metadata file of the array was rewritten since the store was opened."""
        if self.stamp is not None and self.store.stamp(f"{self.name}/{_file(self.metadata)}") != self.stamp:
            raise InputError(f"{self.store.path} has changed since it was opened; run again when it is complete")

    def read(self, positions: Sequence[np.ndarray]) -> tuple[np.ndarray, list[str]]:
        """Return the values at increasing `positions` along each axis, and the keys of chunks that do not exist.

        Each chunk is decoded once. If a shard lacks a chunk of the region, the key of the shard is returned.
        """
        reading = Reading(self.store, has_blosc=_codecs(self.metadata)[-1:] in (["blosc"], ["numcodecs.blosc"]))
        array = zarr.Array(zarr.AsyncArray(self.metadata, StorePath(reading, f"{self.store.group}{self.name}")))
        region = tuple(compact(each) for each in positions)
        try:
            if self.stored != self.chunks:
                reading.absent |= self._incomplete_shards(reading, positions)
            values = np.asarray(array.get_orthogonal_selection(region) if region else array[...])
        except InputError:
            raise
        except Exception as error:  # every codec has its own classes of errors
            places = self._places(positions)
            if len(places) > 1:
                for place in places:  # the damaged chunk raises an error with its name
                    self.read([each[each // n == k] for each, n, k in zip(positions, self.stored, place, strict=True)])
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(
                f"{self.store.path} is damaged: chunk {self.key(places[0])} cannot be read ({reason}); fetch it again"
            ) from None
        return values if values.dtype.kind == self.dtype.kind else values.view(self.dtype), sorted(reading.absent)

    def _places(self, positions: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
        """Return the positions in `stored_grid` of all keys that a region needs."""
        return [*product(*(np.unique(each // n).tolist() for each, n in zip(positions, self.stored, strict=True)))]

    def _incomplete_shards(self, reading: Reading, positions: Sequence[np.ndarray]) -> set[str]:
        """Return the keys of shards that lack a chunk needed for `positions`."""
        settings = self.metadata.codecs[0].to_dict()["configuration"]
        counts = tuple(n // k for n, k in zip(self.stored, self.chunks, strict=True))
        numbers = 2 * math.prod(counts)
        size = 8 * numbers + (4 if len(settings["index_codecs"]) > 1 else 0)
        part = SuffixByteRequest(size) if settings["index_location"] == "end" else RangeByteRequest(0, size)
        chunks = [np.unique(each // k) for each, k in zip(positions, self.chunks, strict=True)]
        places = self._places(positions)

        async def indexes() -> list[Any]:
            requests = [reading.get(self.key(place), default_buffer_prototype(), part) for place in places]
            return await asyncio.gather(*requests)

        incomplete = set()
        for place, index in zip(places, sync(indexes()), strict=True):
            if index is None:
                continue
            offsets = np.frombuffer(index.to_bytes(), "<u8", numbers).reshape(*counts, 2)[..., 0]
            inside = [each[each // n == k] % n for each, n, k in zip(chunks, counts, place, strict=True)]
            if (offsets[np.ix_(*inside)] == _ABSENT).any():
                incomplete.add(self.key(place))
        return incomplete

    def coordinate(self) -> np.ndarray:
        """Return all values of a coordinate.

        A missing chunk of one value gets the fill value, with a warning: writers omit chunks of zeros, such as a single
        lead time of 0 h. A missing chunk of several values raises an `InputError`, because the values of a coordinate
        differ.
        """
        values, absent = self.read([np.arange(n) for n in self.metadata.shape])
        for key in absent:
            if min(values.size, math.prod(self.stored)) > 1:
                raise InputError(f"{self} lacks its chunk {key}, and the values of a coordinate differ; fetch it again")
            value = 0 if self.fill_value is None else self.fill_value
            warnings.warn(
                f"{self} lacks its chunk {key}, for which Zarr gives {value} {self.attributes.get('units', '')}; "
                "fetch it again if this is wrong",
                stacklevel=2,
            )
        return values


def _file(metadata: Any) -> str:
    """Return the name of the metadata file of an array."""
    return ".zarray" if metadata.zarr_format == 2 else "zarr.json"


def _codecs(metadata: Any) -> list[str]:
    """Return the names of an array's codecs in order; the last one makes the stored bytes. Format 2 has one codec."""
    if metadata.zarr_format == 2:
        return [metadata.compressor.codec_id] if metadata.compressor else []
    return [codec.to_dict()["name"] for codec in metadata.codecs]


def _refusal(metadata: Any) -> str:
    """Return why an array cannot be read, and what to do about it; an empty text if it can be read."""
    if metadata.zarr_format == 3 and metadata.to_dict()["chunk_grid"]["name"] != "regular":
        return "chunks of unequal sizes, which are not read; rewrite it with regular chunks"
    if "sharding_indexed" in (codecs := _codecs(metadata)):
        if len(codecs) > 1:
            return "compressed shards, which are not read; compress the chunks in them instead"
        index = metadata.codecs[0].to_dict()["configuration"]["index_codecs"]
        if [each["name"] for each in index] not in _INDEX_CODECS or "big" in str(index):
            return "shards with an index in an unusual form, which is not read; rewrite it with xarray's to_zarr"
    return ""


def _is_encoded(value: Any) -> bool:
    """Whether a `_FillValue` is in base64, as xarray writes floating-point numbers to format 3."""
    return isinstance(value, str) and value not in ("NaN", "nan", "Infinity", "-Infinity")


def _meant_type(dtype: np.dtype, attributes: Mapping[str, Any]) -> np.dtype:
    """Return the type in which stored integers must be read.

    `_Unsigned` true marks unsigned numbers in a signed type; `_Unsigned` false marks signed numbers in an unsigned type
    (NetCDF Users Guide, appendix A).
    """
    meant = {("i", "true"): "u", ("u", "false"): "i"}.get((dtype.kind, str(attributes.get("_Unsigned", "")).lower()))
    return np.dtype(dtype.str.replace(dtype.kind, meant)) if meant else dtype


def _recast(value: Any, dtype: np.dtype) -> Any:
    """Return a stored value, or a list of values, in another type of the same size: as uint8, -1 is 255."""
    return np.asarray(value).astype(np.int64).astype(dtype).tolist()
