"""ReferenceStore: a Zarr store whose chunks are byte ranges of other files, to which kerchunk references point."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numcodecs
import numpy as np
from fsspec.core import split_protocol, strip_protocol
from fsspec.implementations.reference import LazyReferenceMapper, ReferenceFileSystem
from numcodecs.abc import Codec
from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import FsspecStore

from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.common.files import FileAddress, Url
from data_pipeline.common.identity import hash_of, sampled_hash
from data_pipeline.formats.grib.decode import decode_in_order
from data_pipeline.formats.zarr.detection import REFERENCES, split_address
from data_pipeline.formats.zarr.zarr_store import ZarrStore, at_once, content_at_url


def is_local(url: str) -> bool:
    """Whether a URL or path is a file of this machine."""
    return split_protocol(url)[0] in (None, "file", "local")


class GribCodec(Codec):
    """Decodes GRIB messages, to which references of kerchunk point.

    It replaces kerchunk's codec of this name, which decodes one message at a time and takes an honest 9999 for missing.
    """

    codec_id = "grib"

    def __init__(self, var: str, dtype: str | None = None) -> None:
        self.var, self.dtype = var, dtype

    def encode(self, buf: Any) -> Any:
        """Raise an error: messages are only read."""
        raise NotImplementedError

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return the values, or the coordinate `var`, of all points in their order in the message."""
        key = f"{self.var}s" if self.var in ("latitude", "longitude") else "values"
        values = decode_in_order(bytes(buf), key).astype(np.dtype(self.dtype or "f8"), copy=False)
        return values if out is None else numcodecs.compat.ndarray_copy(values, out)


@dataclass(frozen=True)
class ReferenceStore(ZarrStore):
    """References in a JSON file, or in a folder of Parquet files, at a path or a URL.

    The fingerprint has the bytes to which they point, not the places: files may move with their references.
    """

    @property
    def group(self) -> str:
        """The group in the address after `#`."""
        name = split_address(self.path)[2]
        return f"{name}/" if name else ""

    def address_of(self, group: str) -> str:
        """Return the address of a group in this group."""
        return f"{REFERENCES}{split_address(self.path)[0]}#{self.group}{group}"

    @property
    def is_remote(self) -> bool:
        """Whether the chunks are at URLs."""
        return any(protocol not in (None, "file", "local") for protocol in self._files.fss)

    @property
    def _files(self) -> ReferenceFileSystem:
        return _files(self.path, self.stamp(), os.getpid())

    def opened(self) -> Store:
        """Return the store as zarr-python opens it."""
        return _ListedStore(self._files, read_only=True, path="")

    def stamp(self, key: str = "") -> object:
        """Return size and modification time of the references; None at a URL."""
        return super().stamp()

    def keys(self, array: str) -> Set[str] | None:
        """Return all keys of the references."""
        return self._files.references.keys()

    def length(self, key: str) -> int:
        """Return the bytes to which the reference of a key points; 0 if it points to a whole file."""
        found = self._files.references.get(key)
        return found[2] if isinstance(found, list | tuple) and len(found) == 3 else 0

    def contents(self, keys: Sequence[str], fields: int, whole: int) -> list[str]:
        """Return a hash of the bytes of each key; at a URL, of the state of the file and the range in it."""
        references = self._files.references
        found = [references.get(key, b"") for key in keys]
        files = [each[0] for each in found if isinstance(each, list | tuple)]
        remote = [url for url in dict.fromkeys(files) if not is_local(url)]

        def content(reference: Any) -> str:
            if not isinstance(reference, list | tuple):
                return hash_of(reference)
            url, *part = reference
            if state := states.get(url):
                return f"{state} {[*map(int, part)]}"
            return content_of_file(url, *map(int, part), fields=fields, whole=whole)

        states = dict(zip(remote, at_once(self._state, remote), strict=True))
        return at_once(content, found)

    def _state(self, url: str) -> str:
        systems: Mapping[str | None, Any] = self._files.fss
        if not (state := sync(content_at_url(systems[split_protocol(url)[0]], url))):
            raise InputError(f"there is no {url}, to which chunks of {self.path} point; fetch it again")
        return state


class _ListedStore(FsspecStore):
    """Lists groups, too: zarr-python asks for `/group`, and the keys of references do not begin with a slash."""

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        with suppress(FileNotFoundError):
            for name in await self.fs._ls(prefix.rstrip("/"), detail=False):
                yield name.removeprefix(prefix).strip("/")


def content_of_file(url: str, start: int = 0, length: int | None = None, *, fields: int, whole: int) -> str:
    """Return the `sampled_hash` of a range of bytes of a local file."""
    try:
        with open(strip_protocol(url), "rb", buffering=0) as file:  # noqa: PTH123 (the path of a URL)
            size = os.fstat(file.fileno()).st_size - start
            return sampled_hash(file.fileno(), size if length is None else length, fields, start=start, whole=whole)
    except OSError as error:
        raise InputError(f"cannot read {url}, to which chunks point ({error.strerror}); fetch it again") from None


@lru_cache(maxsize=16)
def _files(path: FileAddress, stamp: object, process: int) -> ReferenceFileSystem:
    """Return the references at an address as a file system, opened once in each process."""
    numcodecs.register_codec(GribCodec)
    place = split_address(path)[0]
    try:
        files = ReferenceFileSystem(place, asynchronous=True, remote_options={"asynchronous": True})
        if isinstance(files.references, LazyReferenceMapper):
            with package("reading references in Parquet", "parquet"):
                import_module("fastparquet")
        return files
    except InputError:
        raise
    except Exception as error:  # each protocol has its own classes of errors
        reason = " ".join(str(error).split()) or type(error).__name__
        advice = "check the URL" if isinstance(path, Url) else "fetch it again"
        raise InputError(f"{path}: its references cannot be read ({reason}); {advice}") from None
