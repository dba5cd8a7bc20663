"""Budget: how many bytes and threads a run may spend on having samples at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError


@dataclass(frozen=True)
class Budget:
    """Bytes of the staging buffer, of samples kept in memory and on a local disk; threads that read ahead.

    Staging holds the samples that come next; the other two hold those that will be read again. The batch in use and
    the one after it come on top. `folder` is a place on a local disk that no other run uses at the same time.
    """

    staging: int = 1_000_000_000
    memory: int = 4_000_000_000
    disk: int = 0
    folder: str | None = None
    threads: int = 2

    def __post_init__(self) -> None:
        for name, least in (("staging", 1), ("memory", 0), ("disk", 0), ("threads", 1)):
            check_integer(f"data.cache.{name}", getattr(self, name), least)
        if self.disk and self.folder is None:
            raise InputError(
                f"data.cache.disk allows {self.disk} bytes but there is no place for them; "
                "name a folder on a local disk with data.cache.folder, or set data.cache.disk=0"
            )
        if self.folder is not None and not self.disk:
            raise InputError(
                f"data.cache.folder is {self.folder} but data.cache.disk allows it no bytes; "
                "say how many with data.cache.disk, or leave the folder out"
            )

    def shares(self, sizes: Sequence[int]) -> list[Budget]:
        """Divide the bytes among data sets of `sizes` bytes: staging evenly, memory and disk in proportion."""
        shares = []
        for size in sizes:
            memory, disk = (room * size // sum(sizes) for room in (self.memory, self.disk))
            staging, folder = max(1, self.staging // len(sizes)), self.folder if disk else None
            shares.append(replace(self, staging=staging, memory=memory, disk=disk, folder=folder))
        return shares
