"""IcechunkStore: a snapshot of an Icechunk repository, in a folder or in a bucket of S3 or Google Cloud Storage."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import icechunk
from fsspec.config import conf
from fsspec.core import url_to_fs
from zarr.abc.store import Store
from zarr.core.sync import sync

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import FileAddress
from data_pipeline.common.identity import MOST_BLOCKS, WHOLE_BYTES
from data_pipeline.formats.zarr.detection import ICECHUNK, split_address
from data_pipeline.formats.zarr.reference_store import content_of_file, is_local
from data_pipeline.formats.zarr.zarr_store import ZarrStore, at_once, content_at_url

_users: set[int] = set()
"""The process that uses Icechunk; a forked process gets a copy of this set without the threads of Icechunk."""


@dataclass(frozen=True)
class IcechunkStore(ZarrStore):
    """One snapshot of a repository; later commits change nothing in it, here and in other processes."""

    snapshot: str = ""

    @classmethod
    def at(cls, address: FileAddress) -> Self:
        """Return the snapshot that an address names: the last one of a branch, one with a tag, or one with this ID."""
        version = split_address(address)[1] or "main"
        with _errors(address):
            repository = _repository(address, os.getpid())
            for find in (repository.lookup_branch, repository.lookup_tag):
                try:
                    return cls(address, find(version))
                except icechunk.IcechunkError as error:
                    if "ref not found" not in str(error):
                        raise
            return cls(address, repository.lookup_snapshot(version).id)

    @property
    def group(self) -> str:
        """The group in the address after `#`."""
        name = split_address(self.path)[2]
        return f"{name}/" if name else ""

    def address_of(self, group: str) -> str:
        """Return the address of a group in this group."""
        return f"{ICECHUNK}{str(self.path).removeprefix(ICECHUNK).partition('#')[0]}#{self.group}{group}"

    @property
    def is_remote(self) -> bool:
        """Whether the repository is at a URL."""
        return not is_local(split_address(self.path)[0])

    def opened(self) -> Store:
        """Return the store as zarr-python opens it."""
        return self._session.store

    @property
    def _session(self) -> Any:
        with _errors(self.path):
            return _session(self.path, self.snapshot, os.getpid())

    def stamp(self, key: str = "") -> object:
        """Return the ID of the snapshot, which never changes."""
        return self.snapshot

    def keys(self, array: str) -> Set[str] | None:
        """Return all keys of an array; None for a repository at a URL, whose lists of chunks may be long."""
        if self.is_remote:
            return None

        async def listed() -> set[str]:
            return {key async for key in self.opened().list_prefix(f"{array}/")}

        return sync(listed())

    def contents(self, keys: Sequence[str], fields: int, whole: int) -> list[str]:
        """Return the ID of the snapshot, and the contents of all files outside the repository that have its chunks."""
        return [self.snapshot, *_outside(self.path, self.snapshot, os.getpid())]


def _outside(path: FileAddress, snapshot: str, process: int) -> list[str]:
    """Return the contents of the files to which virtual chunks point."""
    with _errors(path):
        urls = sorted({*_session(path, snapshot, process).all_virtual_chunk_locations()})

    def content(url: str) -> str:
        if is_local(url):
            return content_of_file(url, fields=MOST_BLOCKS, whole=WHOLE_BYTES)
        system, place = url_to_fs(url, asynchronous=True)
        if not (state := sync(content_at_url(system, place))):
            raise InputError(f"there is no {url}, to which chunks of {path} point; fetch it again")
        return state

    return at_once(content, urls)


@lru_cache(maxsize=16)
def _session(path: FileAddress, snapshot: str, process: int) -> Any:
    return _repository(path, process).readonly_session(snapshot_id=snapshot)


@lru_cache(maxsize=16)
def _repository(path: FileAddress, process: int) -> icechunk.Repository:
    """Return the repository at an address, opened once in each process, with access to the files of virtual chunks."""
    if _users and process not in _users:
        raise InputError(
            f"{path} cannot be read in a forked process of one that has used Icechunk, which has threads of its own; "
            "start processes with spawn, or read in the first process"
        )
    _users.add(process)
    if "ICECHUNK_LOG" not in os.environ:
        icechunk.set_logs_filter("error")  # it warns of commits in folders, and nothing is committed here
    storage = _storage(path)
    config = icechunk.Repository.fetch_config(storage)
    containers = config.virtual_chunk_containers if config else None
    access = {each.url_prefix: _credentials(each.url_prefix) for each in (containers or {}).values()}
    credentials = icechunk.containers_credentials(access)
    return icechunk.Repository.open(storage, authorize_virtual_chunk_access=credentials)


def _storage(path: FileAddress) -> icechunk.Storage:
    """Return the place of a repository, with the settings of access that fsspec has for its protocol."""
    place = split_address(path)[0]
    if is_local(place):
        folder = place.removeprefix("file://")
        if not Path(folder).is_dir():
            raise InputError(f"{path} is no Icechunk repository; check the path")
        return icechunk.local_filesystem_storage(folder)
    protocol, _, rest = place.partition("://")
    bucket, _, prefix = rest.partition("/")
    settings = conf.get(protocol, {})
    anonymous = bool(settings.get("anon") or settings.get("token") == "anon")
    access: dict[str, Any] = {"bucket": bucket, "prefix": prefix, "anonymous": anonymous, "from_env": not anonymous}
    if protocol in ("gs", "gcs"):
        return icechunk.gcs_storage(**access)
    if protocol != "s3":
        raise InputError(f"{path}: Icechunk is read from folders, s3:// and gs:// only; copy it there")
    if "key" in settings:
        access |= {"access_key_id": settings["key"], "secret_access_key": settings["secret"], "from_env": False}
        access |= {"session_token": settings.get("token")}
    region = settings.get("client_kwargs", {}).get("region_name")
    if server := settings.get("endpoint_url"):
        access |= {"endpoint_url": server, "allow_http": server.startswith("http:"), "force_path_style": True}
        region = region or "us-east-1"
    return icechunk.s3_storage(region=region, **access)


def _credentials(prefix: str) -> Any:
    """Return the credentials for files of virtual chunks: of the environment, or none if fsspec reads anonymously."""
    protocol = prefix.partition("://")[0]
    anonymous = bool(conf.get(protocol, {}).get("anon"))
    if protocol == "s3":
        return icechunk.s3_anonymous_credentials() if anonymous else icechunk.s3_from_env_credentials()
    return icechunk.gcs_from_env_credentials() if protocol in ("gs", "gcs") else None


@contextmanager
def _errors(path: FileAddress) -> Iterator[None]:
    """Raise an `InputError` that names the repository for an error of Icechunk."""
    try:
        yield
    except icechunk.IcechunkError as error:
        reason = str(error).strip().splitlines()[0].strip(" x")
        raise InputError(f"{path} cannot be read ({reason}); check the address, its version and your rights") from None
