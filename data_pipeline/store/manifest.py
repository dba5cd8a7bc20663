"""Manifest: the plan of a store and the checksums of the files that are done, in one JSON file beside them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_write
from data_pipeline.store.plan import Plan

NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Finished:
    """A file that is done: its size, its checksum, and at which bytes the values of each variable begin."""

    bytes: int
    sha256: str
    offsets: dict[str, int]

    @classmethod
    def of(cls, path: Path, offsets: dict[str, int]) -> Finished:
        """Describe the file at `path`."""
        return cls(path.stat().st_size, checksum(path), offsets)

    def describes(self, path: Path) -> bool:
        """Whether the file at `path` is that file, byte for byte."""
        return path.is_file() and path.stat().st_size == self.bytes and checksum(path) == self.sha256


@dataclass(frozen=True)
class Manifest:
    """What a folder will hold when the plan is carried out, and the files of it that are there."""

    plan: Plan
    files: dict[str, Finished] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return set(self.files) == set(self.plan.files)

    def write(self, folder: Path) -> None:
        """Write the manifest of `folder`."""
        files = {name: asdict(self.files[name]) for name in self.plan.files if name in self.files}
        with atomic_write(folder / NAME, "w") as file:
            json.dump({"format": FORMAT, "plan": self.plan.to_json(), "files": files}, file, indent=1)

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Read the manifest of `folder`; None if it has none."""
        path = folder / NAME
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path} ({error}); remove {folder} and make the store again") from None
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise InputError(
                    f"{path} has format {found['format']}, this version reads {FORMAT}; "
                    f"remove {folder} and make the store again"
                )
            files = {name: Finished(**values) for name, values in found["files"].items()}
            return cls(Plan.from_json(found["plan"]), files)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                f"{path} is not the manifest of a store; remove {folder} and make the store again"
            ) from None


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
