"""Manifest: the plan of a store and the checksums of its finished files, in a JSON file in the store's folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_write
from data_pipeline.common.identity import hash_of, sampled_hash_of, sha256_of
from data_pipeline.samples.pseudo_members import MOMENTS_VERSION
from data_pipeline.store.store_plan import StorePlan

MANIFEST_NAME = "manifest.json"
MANIFEST_FORMATS = {False: 2, True: 1 + MOMENTS_VERSION}
"""Format of the manifest, by whether the store holds moments instead of members."""


@dataclass(frozen=True)
class FinishedFile:
    """Size and checksum of a finished file, the offset in bytes of each variable's values, and a hash of some bytes."""

    bytes: int
    sha256: str
    offsets: dict[str, int]
    sampled: str

    @classmethod
    def from_path(cls, path: Path, offsets: dict[str, int]) -> FinishedFile:
        """Read size and checksum of the file at `path`."""
        return cls(path.stat().st_size, sha256_of(path), offsets, sampled_hash_of(path))

    def matches(self, path: Path) -> bool:
        """Whether the file at `path` has this size and checksum."""
        return path.is_file() and path.stat().st_size == self.bytes and sha256_of(path) == self.sha256


@dataclass(frozen=True)
class Manifest:
    """The plan of a store, and its finished files by name."""

    plan: StorePlan
    files: dict[str, FinishedFile] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all files of the plan are finished."""
        return set(self.files) == set(self.plan.files)

    def write(self, folder: Path) -> None:
        """Write the manifest into `folder`."""
        files = {name: asdict(self.files[name]) for name in self.plan.files if name in self.files}
        with atomic_write(folder / MANIFEST_NAME, "w") as file:
            json.dump(
                {
                    "format": MANIFEST_FORMATS[self.plan.moments], "hash": self.plan.digest,
                    "plan": self.plan.to_json(), "files": files,
                },
                file,
                indent=1,
            )  # fmt: skip

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Read the manifest of `folder`; None if it has none."""
        path = folder / MANIFEST_NAME
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path} ({error}); make a new store in another folder") from None
        try:
            found = json.loads(text)
            if found["format"] != (expected := MANIFEST_FORMATS[found.get("plan", {}).get("moments") is True]):
                raise InputError(
                    f"{path} has format {found['format']}, this version reads format {expected}; "
                    "make a new store in another folder"
                )
            if found["hash"] != hash_of(found["plan"]):
                raise InputError(f"{path} was edited after the store was made; make a new store in another folder")
            files = {name: FinishedFile(**values) for name, values in found["files"].items()}
            return cls(StorePlan.from_json(found["plan"]), files)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{path} is not the manifest of a store; make a new store in another folder") from None
