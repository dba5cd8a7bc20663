"""Header of a Zarr store: its arrays and their attributes, as zarr-python reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import zarr

from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.common.files import FileAddress
from data_pipeline.formats.cf.cf_header import DataVariable, Header, StoredVariable
from data_pipeline.formats.zarr.array import ZarrArray
from data_pipeline.formats.zarr.detection import is_icechunk, is_references
from data_pipeline.formats.zarr.reference_store import ReferenceStore
from data_pipeline.formats.zarr.zarr_store import ZarrStore


@dataclass(frozen=True, eq=False)
class ZarrFile:
    """A store with its arrays of numbers, its attributes, and the values of its arrays of dates and durations."""

    store: ZarrStore
    arrays: Mapping[str, ZarrArray]
    attributes: Mapping[str, Any]
    dates: Mapping[str, np.ndarray]

    @property
    def path(self) -> FileAddress:
        """Folder, zip file or URL."""
        return self.store.path

    def stored_fields(self, data: DataVariable, outer: tuple[str, ...]) -> np.ndarray | None:
        """Return a mask (n,) of the fields whose chunks exist; None if all exist, or if that is not known.

        If an absent chunk means missing values, a field exists if one of its chunks exists; otherwise all must exist.
        """
        array = self.arrays[data.name]
        chunks = array.existing_chunks()
        if chunks is None or chunks.all():
            return None
        across = tuple(k for k, name in enumerate(data.dimensions) if name not in outer)
        exists = chunks.any(axis=across) if array.fills_with_missing else chunks.all(axis=across)
        kept = [k for k, name in enumerate(data.dimensions) if name in outer]
        for axis, k in enumerate(kept):
            exists = exists.repeat(array.stored[k], axis)[(slice(None),) * axis + (slice(data.shape[k]),)]
        own = [data.dimensions[k] for k in kept]
        return np.transpose(exists, [own.index(name) for name in outer]).ravel()


def zarr_header(address: FileAddress) -> Header:
    """Read the metadata and the coordinates of a store."""
    store = _store(address)
    group = _group(store)
    found = _arrays(store, group)
    arrays = {name: ZarrArray.of(store, name, array) for name, array in found.items() if array.dtype.kind in "fiub"}
    variables = {name: _stored(array) for name, array in arrays.items()}
    variables |= {name: _stored_text(array) for name, array in found.items() if name not in arrays}
    dimensions = dict.fromkeys(name for stored in variables.values() for name in stored.dimensions)
    dates = {name: np.asarray(array[...]) for name, array in found.items() if array.dtype.kind in "mM"}
    dates |= {name: arrays[name].coordinate() for name in {"steps"} & arrays.keys()}
    return Header.of(ZarrFile(store, arrays, dict(group.attrs), dates), dimensions, variables)


def _stored(array: ZarrArray) -> StoredVariable:
    values = partial(_coordinate_values, array)
    return StoredVariable(array.dimensions, array.metadata.shape, array.dtype.kind, array.attributes, values)


def _stored_text(array: zarr.Array) -> StoredVariable:
    """Return a variable that holds no numbers, such as names of members; zarr-python reads its values."""
    metadata = array.metadata.to_dict()
    attributes = dict(array.attrs)
    dimensions: Any = attributes.pop("_ARRAY_DIMENSIONS", None) or metadata.get("dimension_names") or ()
    return StoredVariable(tuple(dimensions), array.shape, "O", attributes, lambda: np.asarray(array[...]).astype(str))


def describe_store(address: FileAddress) -> list[object]:
    """Return what identifies a store: all metadata, texts, and hashes of its chunks."""
    store = _store(address)
    group = _group(store)
    found = sorted(_arrays(store, group).items())
    described: list[object] = [dict(group.attrs)]
    for name, array in found:
        numbers = array.dtype.kind in "fiub"
        values = ZarrArray.of(store, name, array).content(len(found)) if numbers else np.asarray(array[...]).astype(str)
        described += [name, array.metadata.to_dict(), values]
    return described


def _store(address: FileAddress) -> ZarrStore:
    if is_references(address):
        return ReferenceStore(address)
    if is_icechunk(address):
        with package("reading Icechunk", "icechunk"):
            from data_pipeline.formats.zarr.icechunk_store import IcechunkStore

        return IcechunkStore.at(address)
    return ZarrStore(address)


def _group(store: ZarrStore) -> zarr.Group:
    try:
        return zarr.open_group(store.opened(), mode="r", path=store.group.rstrip("/"))
    except InputError:
        raise
    except (FileNotFoundError, zarr.errors.ContainsArrayError):
        raise InputError(
            f"{store.path} is no group of arrays; name the store, not a folder above or an array"
        ) from None
    except Exception as error:  # zarr, fsspec and each protocol have their own classes of errors
        raise _unreadable(store, error) from None


def _arrays(store: ZarrStore, group: zarr.Group) -> dict[str, zarr.Array]:
    try:
        found = dict(group.arrays())
        groups = [] if found else list(group.group_keys())
    except Exception as error:
        raise _unreadable(store, error) from None
    if groups:
        raise InputError(
            f"{store.path} keeps its arrays in groups ({', '.join(groups)}); name one, such as "
            f"{store.address_of(groups[0])}"
        )
    if not found:
        hint = "; a store at a URL needs consolidated metadata: zarr.consolidate_metadata" if store.is_remote else ""
        raise InputError(f"{store.path} has no arrays{hint or '; check the path'}")
    return found


def _unreadable(store: ZarrStore, error: Exception) -> InputError:
    reason = " ".join(str(error).split()) or type(error).__name__
    what = "cannot be read" if store.is_remote else "is damaged: its metadata cannot be read"
    return InputError(f"{store.path} {what} ({type(error).__name__}: {reason}); fetch it again")


def _coordinate_values(array: ZarrArray) -> np.ndarray:
    """Return the values of a coordinate, NaN where they are missing."""
    values = array.coordinate()
    if values.dtype.kind not in "fiu":
        return values
    attributes: Mapping[str, Any] = array.attributes
    marked = {key: value for key, value in attributes.items() if key in ("_FillValue", "missing_value")}
    if marked and array.missing_values and (missing := np.isin(values, array.missing_values)).any():
        values = np.where(missing, np.nan, values)
    if attributes.keys() & {"scale_factor", "add_offset"}:
        values = values * attributes.get("scale_factor", 1.0) + attributes.get("add_offset", 0.0)
    return values
