"""The sidecar: `OUT.grib.json` beside the output `OUT.grib` says what made it, and what was read back from the disk.

The sidecar is removed before the output gets its name and written afterwards, so it never describes an older file. An
output without a sidecar is complete: the run was stopped between these two steps, and can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_write, total_bytes
from data_pipeline.common.identity import sha256_of
from models.engines.engine import CorrectorDescription
from models.members.options import CorrectionOptions

SIDECAR_FORMAT = 1


@dataclass(frozen=True)
class WrittenFile:
    """An output, the inputs that it was made from, the number of its corrected fields, and what was read back.

    `audit` has the SHA-256 of the output, and for a copy of GRIB files the result of `read_back`.
    """

    path: Path
    inputs: tuple[Path, ...]
    fields: int
    audit: Mapping[str, Any]

    @classmethod
    def without_messages(cls, path: Path, inputs: Sequence[Path], fields: int) -> WrittenFile:
        """Return the record of an output that is not a copy of GRIB files."""
        return cls(path, tuple(inputs), fields, {"sha256": sha256_of(path)})


def sidecar_path(output: Path) -> Path:
    """Return the path of the sidecar of an output.

    >>> sidecar_path(Path("OUT.grib")).name
    'OUT.grib.json'
    """
    return output.with_name(f"{output.name}.json")


def write_sidecar(output: Path, found: Mapping[str, Any]) -> None:
    """Write one line of JSON beside a whole output."""
    with atomic_write(sidecar_path(output), "w") as file:
        json.dump({"format": SIDECAR_FORMAT, "kind": "corrected forecast", **found}, file, allow_nan=False)
        file.write("\n")


def refuse_corrected(forecasts: Sequence[Path], descriptions: Sequence[CorrectorDescription]) -> None:
    """Raise `InputError` if a file is the output of one of these correctors, as its sidecar says."""
    own = {one.sha256: one.name for one in descriptions}
    for path in forecasts:
        try:
            record = json.loads(sidecar_path(path).read_text("utf-8"))
            again = [own[one["sha256"]] for one in record["correctors"] if one["sha256"] in own]
            # The sidecar of an older file of this name does not count.
            found = again and record["output"]["sha256"] == sha256_of(path)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if found:
            raise InputError(
                f"{path} was corrected by {again[0]} already, says {sidecar_path(path).name}, and a second correction "
                "would be added to the first; name the raw forecast"
            )


def describe_correctors(descriptions: Sequence[CorrectorDescription]) -> list[dict[str, Any]]:
    """Return name, SHA-256 and task of each corrector, and the `StationCounts` of one at other stations."""
    found: list[dict[str, Any]] = []
    for one in descriptions:
        found.append({"name": one.name, "sha256": one.sha256, "task": one.task.to_json()})
        if one.station_counts is not None:
            found[-1]["stations"] = one.station_counts._asdict()
    return found


def hashed_files(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return path, size and SHA-256 of each file.

    That of a Zarr store is the hash of a list of its files.
    """
    return [{"path": str(path), "bytes": total_bytes([path]), "sha256": sha256_of(path)} for path in paths]


def describe_options(options: CorrectionOptions) -> dict[str, Any]:
    """Return the options that change the output; conformal layers are named by the SHA-256 of their correctors."""
    found = {name: value for name, value in vars(options).items() if isinstance(value, str | int | bool | None)}
    lists = {name: list(getattr(options, name)) for name in ("products", "history", "reforecasts")}
    return {**found, "conformal": sorted(options.conformal), "keys": dict(options.keys), **lists}
