"""One Zarr store, in a folder, in a zip file or at a URL: open it with zarr-python, and report errors of reading."""

from __future__ import annotations

import asyncio
import os
import zipfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import zarr
from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, WrapperStore, ZipStore

from data_pipeline.common.errors import InputError
from data_pipeline.common.file_format import wrong_format
from data_pipeline.common.files import FileAddress, Url
from data_pipeline.common.identity import BLOCK_BYTES, hash_of, sampled_hash
from data_pipeline.common.threads import BUDGET
from data_pipeline.formats.zarr.detection import is_zarr

_THREADS = 16
"""Threads that request files at once, to hide the latency of networks."""
_ATTEMPTS = 3
"""Number of requests for a chunk at a URL before a failure is reported."""
_BLOSC_HEADER = 16
_TAGS = ("ETag", "etag", "Content-MD5", "md5Hash", "Digest", "content_md5")
_DATES = ("Last-Modified", "LastModified", "last_modified", "updated", "mtime", "created")
"""Keys under which protocols give the hash of a file (`_TAGS`) or the time of its last change (`_DATES`)."""


@dataclass(frozen=True)
class ZarrStore:
    """A store at an address; it keeps no file open, so that it can be sent to other processes."""

    path: FileAddress

    def __post_init__(self) -> None:
        """Raise an `InputError` if there is no store at the address."""
        if not is_zarr(self.path):
            raise wrong_format(self.path, "a Zarr store")

    @property
    def group(self) -> str:
        """The group of the arrays in the opened store, with a slash at its end; empty for the store itself."""
        return ""

    def address_of(self, group: str) -> str:
        """Return the address of a group in this group."""
        return f"{self.path}/{group}"

    @property
    def is_remote(self) -> bool:
        """Whether the chunks are at URLs, where a request for each of them would take too long."""
        return isinstance(self.path, Url)

    def opened(self) -> Store:
        """Return the store as zarr-python opens it."""
        return _opened(self.path, self.stamp(), os.getpid())

    def stamp(self, key: str = "") -> object:
        """Return size and modification time of the file of a key, or of the zip file; None if there is no such file."""
        if isinstance(self.path, Url):
            return None
        try:
            status = (self.path / key if self.path.is_dir() else self.path).stat()
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns

    def keys(self, array: str) -> Set[str] | None:
        """Return a set with all existing keys of an array, and perhaps other keys; None if that is not known.

        A folder is listed without zarr-python, which takes ten times as long.
        """
        if isinstance(self.path, Url):
            return None
        if self.path.is_file():
            return _checksums(self.path, self.stamp()).keys()

        def refuse(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise InputError(f"cannot read {error.filename} ({error.strerror})")

        folders = os.walk(f"{self.path}/{array}", onerror=refuse)
        start = len(f"{self.path}/")
        return {f"{folder}/{name}"[start:] for folder, _, names in folders for name in names}

    def contents(self, keys: Sequence[str], fields: int, whole: int) -> list[str]:
        """Return a hash or checksum of each key; `fields` and `whole` are arguments of `sampled_hash`."""
        if isinstance(self.path, Path) and self.path.is_file():
            checksums = _checksums(self.path, self.stamp())
            return [checksums.get(key, "") for key in keys]
        return at_once(lambda key: self._content(key, fields, whole), keys)

    def length(self, key: str) -> int:
        """Return the bytes that a key has at least, as far as that is known."""
        return 0

    def _content(self, key: str, fields: int, whole: int) -> str:
        if isinstance(self.path, Url):
            store: Any = self.opened()
            return sync(content_at_url(store.fs, f"{store.path.rstrip('/')}/{key}"))
        try:
            with (self.path / key).open("rb", buffering=0) as file:
                return sampled_hash(file.fileno(), os.fstat(file.fileno()).st_size, fields, whole=whole)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise InputError(f"cannot read {self.path}/{key} ({error.strerror})") from None


def at_once(request: Callable[[Any], str], items: Iterable[Any]) -> list[str]:
    """Return the results of requests that wait for a network or a disk, several at once."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(request, items))


async def content_at_url(system: Any, url: str) -> str:
    """Return the server's hash of a file, or else its size and date, or else a hash of its first and last bytes.

    `system` is the file system of fsspec. A file that does not exist gives an empty text.
    """
    known = await _ask(url, True, lambda: system._info(url))
    if known is None:
        return ""
    size = known.get("size")
    for names in (_TAGS, _DATES):
        if told := [known[name] for name in names if known.get(name)]:
            return f"{size} {told[0]}"
    ends: list[bytes] = []
    for first, last in ((0, min(BLOCK_BYTES, size)), (max(size - BLOCK_BYTES, 0), size)) if size else ():
        part = await _ask(url, True, partial(system._cat_file, url, start=first, end=last))
        # A server may ignore the byte range and send everything.
        ends.append(part if len(part) <= last - first else part[first:last])
    return hash_of(*ends, size)


class Reading(WrapperStore[Store]):
    """A store during one reading of an array; it collects in `absent` the keys that do not exist.

    A key that cannot be read, or is cut off, raises an `InputError`. With `has_blosc`, Blosc made the stored bytes.
    """

    def __init__(self, store: ZarrStore, has_blosc: bool = False) -> None:
        super().__init__(store.opened())
        self.source, self.path, self.has_blosc = store, store.path, has_blosc
        self.absent: set[str] = set()

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return the bytes of a key; None if it does not exist."""
        place = f"{self.path}/{key}"
        found = await _ask(place, self.source.is_remote, lambda: self._store.get(key, prototype, byte_range))
        if found is None:
            self.absent.add(key)
            return None
        size = 0
        # A server may ignore the byte range and send everything.
        if isinstance(byte_range, RangeByteRequest):
            size = byte_range.end - byte_range.start
            found = found[byte_range.start : byte_range.end] if len(found) > size else found
        elif isinstance(byte_range, SuffixByteRequest):
            found = found[-byte_range.suffix :]
        else:
            size = self.source.length(key)
            if self.has_blosc:
                # Blosc trusts the size in its header and reads beyond the end of a shorter buffer.
                size = max(size, _BLOSC_HEADER, int.from_bytes(found[12:_BLOSC_HEADER].to_bytes(), "little"))
        if len(found) < size:
            raise InputError(f"{self.path} is damaged: chunk {key} cannot be read (it is cut off); fetch it again")
        return found


@lru_cache(maxsize=16)
def _opened(path: FileAddress, stamp: object, process: int) -> Store:
    """Return the store at an address, opened once in each process.

    A forked process must not use a connection, or the position in a zip file, of its parent.
    """
    if zarr.config.get("threading.max_workers") is None:
        zarr.config.set({"threading.max_workers": BUDGET.total})
    if isinstance(path, Url):
        try:
            return FsspecStore.from_url(str(path), read_only=True)
        except (ImportError, ValueError) as error:
            raise InputError(f"cannot open {path} ({error}); check the URL") from None
    if path.is_dir():
        return LocalStore(path, read_only=True)
    try:
        return sync(ZipStore.open(path, mode="r", read_only=True))
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is a damaged zip file ({error}); fetch it again") from None


@lru_cache(maxsize=16)
def _checksums(path: Path, stamp: object) -> Mapping[str, str]:
    """Return the checksum of each entry of a zip file, as the zip file states it."""
    with zipfile.ZipFile(path) as file:
        return {info.filename: f"{info.CRC} {info.file_size}" for info in file.infolist()}


async def _ask(place: str, is_remote: bool, request: Callable[[], Awaitable[Any]]) -> Any:
    """Return the answer to a request, None if the place does not exist; repeat a request that fails at a server."""
    for attempt in range(_ATTEMPTS):
        try:
            return await request()
        except FileNotFoundError:
            return None
        except Exception as error:  # every protocol has its own classes of errors
            advice = "try again later" if is_remote else "fetch it again"
            last = attempt + 1 == _ATTEMPTS or "40" in str(getattr(error.__cause__ or error, "status", ""))
            if last or not is_remote:
                raise InputError(f"cannot read {place} ({_reason(error)}); {advice}") from None
            await asyncio.sleep(0.2 * 4**attempt)
    return None


def _reason(error: Exception) -> str:
    status, message = getattr(error, "status", None), getattr(error, "message", None)
    return f"HTTP {status} {message}" if status else str(error) or type(error).__name__
