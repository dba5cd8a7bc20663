"""Decode the bytes of a Zarr chunk: the codecs of formats 2 and 3, with numcodecs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Self

import numcodecs
import numpy as np
from numcodecs.abc import Codec
from numcodecs.compat import ensure_contiguous_ndarray

from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import BUDGET

_PLAIN = {"blosc": ("cname",), "zstd": (), "gzip": (), "zlib": (), "bz2": (), "lzma": (), "lz4": ()}
"""Compressions of format 3 that numcodecs knows by the same name; decoding needs no settings."""
_BLOSC_HEADER = 16


@dataclass(frozen=True)
class ChunkDecoder:
    """Decodes chunks of one shape and type; `filters` (configurations of numcodecs) are undone in this order.

    `axes` is the order of the chunk's axes in memory.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    filters: tuple[Mapping[str, Any], ...] = ()
    axes: tuple[int, ...] = ()

    @classmethod
    def of_version_2(cls, metadata: Mapping[str, Any], dtype: np.dtype) -> Self:
        """Return the decoder for the metadata of an array of format 2."""
        compressor, filters = metadata.get("compressor"), metadata.get("filters") or ()
        shape = tuple(metadata["chunks"])
        order = range(len(shape))
        return cls(
            shape,
            dtype,
            (*([compressor] if compressor else ()), *reversed(filters)),
            tuple(reversed(order) if metadata.get("order") == "F" else order),
        )

    @classmethod
    def of_version_3(cls, codecs: Sequence[Mapping[str, Any]], shape: tuple[int, ...], dtype: np.dtype) -> Self:
        """Return the decoder for the codecs of an array of format 3, without sharding."""
        axes = tuple(range(len(shape)))
        filters: list[Mapping[str, Any]] = []
        for codec in codecs:
            name, settings = codec["name"], dict(codec.get("configuration") or {})
            if name == "transpose":
                axes = tuple(axes[k] for k in settings["order"])
            elif name == "bytes":
                dtype = dtype.newbyteorder("<" if settings.get("endian", "little") == "little" else ">")
            elif name == "crc32c":
                filters.append({"id": "crc32c", "location": "end"})
            elif name in _PLAIN:
                filters.append({"id": name} | {key: settings[key] for key in _PLAIN[name] if key in settings})
            elif name.startswith("numcodecs."):
                filters.append({"id": name.removeprefix("numcodecs.")} | settings)
            else:
                raise InputError(_unknown(name))
        return cls(shape, dtype, tuple(reversed(filters)), axes)

    @property
    def nbytes(self) -> int:
        """Bytes of a decoded chunk."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def is_plain(self) -> bool:
        """Whether the bytes are the values in the order of the axes, without any codec."""
        return not self.filters and self.axes == tuple(range(len(self.shape)))

    @cached_property
    def _codecs(self) -> tuple[Codec, ...]:
        return tuple(_codec(settings) for settings in self.filters)

    def check(self) -> None:
        """Raise an `InputError` for an unknown codec."""
        _ = self._codecs

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields only: codecs are made again in another process."""
        return {name: self.__dict__[name] for name in ("shape", "dtype", "filters", "axes")}

    def decode(self, stored: bytes, out: np.ndarray | None = None) -> np.ndarray:
        """Return the values of a chunk; a `ValueError` says how it is damaged.

        `out`, contiguous and as large as the chunk, may be used for the result.
        """
        values: Any = stored
        for k, codec in enumerate(self._codecs):
            last = k + 1 == len(self._codecs)
            values = _undo(codec, values, out if last and out is not None and out.dtype == self.dtype else None)
        flat = ensure_contiguous_ndarray(values, max_buffer_size=None, flatten=False).reshape(-1)
        if flat.nbytes != self.nbytes:
            raise ValueError(f"it has {flat.nbytes:,} bytes of {self.nbytes:,}")
        stored_shape = [self.shape[k] for k in self.axes]
        return flat.view(self.dtype).reshape(stored_shape).transpose(np.argsort(self.axes))


def _codec(settings: Mapping[str, Any]) -> Codec:
    try:
        return numcodecs.get_codec(dict(settings))
    except (ValueError, TypeError, ImportError, numcodecs.errors.UnknownCodecError):
        raise InputError(_unknown(str(settings.get("id")))) from None


def _unknown(name: str) -> str:
    return (
        f"uses the codec {name!r}, which is not read; rewrite it in Python with another compression, for instance "
        "with xarray's to_zarr"
    )


@cache
def _limit_blosc() -> None:
    """Limit the threads that Blosc has of its own in the main thread; in other threads it has one."""
    numcodecs.blosc.set_nthreads(BUDGET.total)


def _undo(codec: Codec, stored: Any, out: np.ndarray | None) -> Any:
    """Undo one codec; a `ValueError` says how the bytes are damaged."""
    if codec.codec_id == "blosc":
        # Blosc trusts the size in its header and reads beyond the end of a shorter buffer.
        head = bytes(memoryview(stored)[:_BLOSC_HEADER])
        if len(head) < _BLOSC_HEADER or int.from_bytes(head[12:16], "little") > len(memoryview(stored)):
            raise ValueError("it is cut off")
        _limit_blosc()
    try:
        return codec.decode(stored, out=out) if out is not None else codec.decode(stored)
    except Exception as error:  # every codec has its own classes of errors
        raise ValueError(str(error) or type(error).__name__) from None
