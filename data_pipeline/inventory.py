"""Inventory: what the user's own files hold, found out before anything is trained on them."""

from __future__ import annotations

from dataclasses import dataclass

from data_pipeline.archive import Archive
from data_pipeline.grib import expand, inventory


@dataclass(frozen=True)
class Inventory:
    """Looks through every file of an archive once; the index it leaves in the cache makes later runs start at once."""

    archive: Archive

    def plan(self) -> str:
        """Return which files will be looked through."""
        lines = []
        for name, patterns in self._parts():
            files = expand(patterns)
            size = sum(path.stat().st_size for path in files)
            lines.append(f"{name}: {len(files)} files, {size / 1e9:.2f} GB, {files[0].name} to {files[-1].name}")
        return "\n".join(lines)

    def prepare(self) -> None:
        """Index the files and print what they hold."""
        for name, patterns in self._parts():
            print(f"\n{name}\n{inventory(patterns)}", flush=True)

    def _parts(self) -> list[tuple[str, list[str]]]:
        parts = [
            ("ensemble", self.archive.ensemble),
            ("analysis", self.archive.analysis),
            ("static fields", self.archive.static_fields),
        ]
        return [(name, list(patterns)) for name, patterns in parts if patterns]
