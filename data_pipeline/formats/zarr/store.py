"""One Zarr store: the bytes of its keys, in a folder, in a zip file or at a URL."""

from __future__ import annotations

import os
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import fsspec
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, ZipStore

from data_pipeline.common.errors import InputError
from data_pipeline.common.file_format import wrong_format
from data_pipeline.common.files import FileAddress, Url
from data_pipeline.common.identity import BLOCK_BYTES, hash_of, sampled_hash
from data_pipeline.formats.zarr.detection import is_zarr

_LOCAL_HEADER = 30
"""Bytes of a zip file's header before each entry, without the name and the extra field."""
_KEYS_PER_LIST = 4
"""With fewer keys in a folder, asking for each key is faster than listing the folder."""
_THREADS, _BATCH = 16, 64
"""Threads that ask for files, which hides the latency of networks, and the number of files of each task."""
_ATTEMPTS = 3
"""Number of requests for a chunk at a URL before a failure is reported."""
_TAGS = ("ETag", "etag", "Content-MD5", "md5Hash", "Digest", "content_md5")
_DATES = ("Last-Modified", "LastModified", "last_modified", "updated", "mtime", "created")
"""Names by which protocols tell the hash of a file, or else the time of its last change."""


def open_store(address: FileAddress) -> ZarrStore:
    """Return the store at an address; an `InputError` if it is none."""
    if isinstance(address, Url):
        return UrlStore(address)
    if not is_zarr(address):
        raise wrong_format(address, "a Zarr store")
    return FolderStore(address) if address.is_dir() else ZippedStore.at(address)


class Place(NamedTuple):
    """Bytes of a local file."""

    path: Path
    offset: int
    size: int


class ZarrStore(ABC):
    """Reads the bytes of keys; keeps no file open, so that it can be sent to other processes."""

    path: FileAddress
    is_remote = False
    most_keys = 1 << 16
    """Number of keys that stand for all in the fingerprint."""

    @abstractmethod
    def library_store(self) -> Store:
        """Return the store as zarr-python opens it, to read metadata."""

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Return whether each key exists; for a local store."""
        raise NotImplementedError

    def contents(self, keys: Sequence[str], fields: int, whole: int) -> list[str]:
        """Return what stands for the bytes of each key, with so many `fields`; `whole` is that of `sampled_hash`."""
        batches = [keys[k : k + _BATCH] for k in range(0, len(keys), _BATCH)]
        with ThreadPoolExecutor(_THREADS) as pool:
            found = pool.map(lambda batch: [self._content(key, fields, whole) for key in batch], batches)
            return [content for batch in found for content in batch]

    def _content(self, key: str, fields: int, whole: int) -> str:
        try:
            place = self.place(key)
        except FileNotFoundError:
            return ""
        assert place is not None
        with local_file(place.path) as descriptor:
            return sampled_hash(descriptor, place.size, fields, start=place.offset, whole=whole)

    @abstractmethod
    def place(self, key: str) -> Place | None:
        """Return where the bytes of a key are, if a local file has them as they are; a `FileNotFoundError` if not."""

    @abstractmethod
    def stamp(self, key: str) -> Any:
        """Return a value that changes when a key is rewritten, or None if that is not known."""

    def fetch(self, key: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return the bytes of a key from `start` (from the end, if negative) to `stop`; None if it does not exist."""
        try:
            place = self.place(key)
        except FileNotFoundError:
            return None
        assert place is not None
        first, last, _ = slice(start, stop).indices(place.size)
        with local_file(place.path) as descriptor:
            return os.pread(descriptor, max(0, last - first), place.offset + first)


@contextmanager
def local_file(path: Path) -> Any:
    """Open a file for `os.pread`; a failure raises an `InputError` that names it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})") from None
    try:
        yield descriptor
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})") from None
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class FolderStore(ZarrStore):
    """A folder with one file per key."""

    path: Path

    def library_store(self) -> Store:
        """Return the store as zarr-python opens it."""
        return LocalStore(self.path, read_only=True)

    def _size(self, key: str) -> int:
        """Return the number of bytes of a key, -1 if it does not exist."""
        try:
            return os.stat(f"{self.path}/{key}").st_size  # noqa: PTH116 (thousands of chunks: no Path for each)
        except FileNotFoundError:
            return -1
        except OSError as error:
            raise InputError(f"cannot read {self.path}/{key} ({error.strerror})") from None

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Return whether each key exists: from lists of folders if these have many keys, else asking for each."""
        folders = {key.rpartition("/")[0] for key in keys}
        if len(folders) * _KEYS_PER_LIST <= len(keys):
            listed = {f"{folder}/{name}" for folder in folders for name in self._names(folder)}
            return [key in listed for key in keys]
        batches = [keys[k : k + _BATCH] for k in range(0, len(keys), _BATCH)]
        with ThreadPoolExecutor(_THREADS) as pool:
            found = pool.map(lambda batch: [self._size(key) >= 0 for key in batch], batches)
            return [exists for batch in found for exists in batch]

    def _names(self, folder: str) -> list[str]:
        try:
            return os.listdir(f"{self.path}/{folder}")  # noqa: PTH208 (names only)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"cannot read {self.path}/{folder} ({error.strerror})") from None

    def place(self, key: str) -> Place:
        """Return the file of a key."""
        if (size := self._size(key)) < 0:
            raise FileNotFoundError(key)
        return Place(self.path / key, 0, size)

    def stamp(self, key: str) -> tuple[int, int] | None:
        """Return size and modification time of the file of a key; None if there is none."""
        try:
            status = os.stat(f"{self.path}/{key}")  # noqa: PTH116
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, eq=False)
class ZippedStore(ZarrStore):
    """A zip file with one entry per key.

    `entries` has offset of the entry's header, stored size, compression, and the checksum of its bytes.
    """

    path: Path
    entries: Mapping[str, tuple[int, int, int, int]]

    @classmethod
    def at(cls, path: Path) -> Self:
        """Read the list of entries of a zip file."""
        try:
            with zipfile.ZipFile(path) as file:
                found = {
                    info.filename: (info.header_offset, info.compress_size, info.compress_type, info.CRC)
                    for info in file.infolist()
                }
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is a damaged zip file ({error}); fetch it again") from None
        return cls(path, found)

    def library_store(self) -> Store:
        """Return the store as zarr-python opens it."""
        return ZipStore(self.path, mode="r", read_only=True)

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Return whether each key exists."""
        return [key in self.entries for key in keys]

    def _content(self, key: str, fields: int, whole: int) -> str:
        """Return the checksum that zip has of all bytes, and what the bytes are now, unless it has compressed them."""
        if key not in self.entries:
            return ""
        _, _, compression, checksum = self.entries[key]
        plain = compression == zipfile.ZIP_STORED
        return f"{checksum} {super()._content(key, fields, whole) if plain else ''}"

    def place(self, key: str) -> Place | None:
        """Return the bytes of an entry, None if zip has compressed it."""
        if key not in self.entries:
            raise FileNotFoundError(key)
        header, size, compression, _ = self.entries[key]
        if compression != zipfile.ZIP_STORED:
            return None
        with local_file(self.path) as descriptor:
            start = os.pread(descriptor, _LOCAL_HEADER, header)
        name, extra = (int.from_bytes(start[at : at + 2], "little") for at in (26, 28))
        return Place(self.path, header + _LOCAL_HEADER + name + extra, size)

    def fetch(self, key: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return the bytes of a key from `start` to `stop`; None if it does not exist."""
        if key in self.entries and self.entries[key][2] != zipfile.ZIP_STORED:
            try:
                with zipfile.ZipFile(self.path) as file:
                    return file.read(key)[start:stop]
            except (OSError, zipfile.BadZipFile, EOFError) as error:
                raise InputError(f"{self.path} is damaged: {key} cannot be read ({error}); fetch it again") from None
        return super().fetch(key, start, stop)

    def stamp(self, key: str) -> tuple[int, int]:
        """Return size and modification time of the zip file."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise InputError(f"cannot read {self.path} ({error.strerror})") from None
        return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class UrlStore(ZarrStore):
    """A store at a URL of any protocol that fsspec knows."""

    path: Url
    is_remote = True
    most_keys = 1 << 11

    def library_store(self) -> Store:
        """Return the store as zarr-python opens it."""
        try:
            return FsspecStore.from_url(str(self.path), read_only=True)
        except (ImportError, ValueError) as error:
            raise InputError(f"cannot open {self.path} ({error}); check the URL") from None

    def place(self, key: str) -> None:
        """Return None: nothing is local."""
        return

    def stamp(self, key: str) -> None:
        """Return None: one request for each reading would take too long."""
        return

    def fetch(self, key: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return the bytes of a key from `start` to `stop`; None if it does not exist."""
        part = {} if start == 0 and stop is None else {"start": start, "end": stop}
        found = self._request(key, lambda system, path: system.cat_file(path, **part))
        # A server may ignore the request for a part and send everything.
        expected = -start if start < 0 else None if stop is None else stop - start
        return found if found is None or expected is None or len(found) <= expected else found[start:stop]

    def _content(self, key: str, fields: int, whole: int) -> str:
        """Return the hash of a key that the server knows, or size and date, or else a hash of both ends."""
        known = self._request(key, lambda system, path: system.info(path))
        if known is None:
            return ""
        for names in (_TAGS, _DATES):
            if told := [known[name] for name in names if known.get(name)]:
                return f"{known.get('size')} {told[0]}"
        return hash_of(self.fetch(key, 0, BLOCK_BYTES) or b"", self.fetch(key, -BLOCK_BYTES) or b"", known.get("size"))

    def _request(self, key: str, ask: Callable[[Any, str], Any]) -> Any:
        """Return the answer of the server of a key, None if it does not exist; a few failures are not the end."""
        system, root = _file_system(str(self.path), os.getpid())
        for attempt in range(_ATTEMPTS):
            try:
                return ask(system, f"{root}/{key}")
            except FileNotFoundError:
                return None
            except Exception as error:  # every protocol has its own classes of errors
                if attempt + 1 == _ATTEMPTS or "40" in str(getattr(error, "status", "")):
                    raise InputError(f"cannot read {self.path}/{key} ({_reason(error)}); try again later") from None
                time.sleep(0.2 * 4**attempt)
        return None


@lru_cache(maxsize=16)
def _file_system(url: str, process: int) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, once for each process, and the path in it."""
    system, root = fsspec.core.url_to_fs(url)
    return system, root.rstrip("/")


def _reason(error: Exception) -> str:
    """Return the cause of a failed request in a few words."""
    status, message = getattr(error, "status", None), getattr(error, "message", None)
    return f"HTTP {status} {message}" if status else str(error) or type(error).__name__
