"""Format: what a format of files can do; `formats.registry` lists all formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_pipeline.common.files import FileAddress, Paths, expand_addresses, total_bytes
from data_pipeline.common.messages import format_size
from data_pipeline.formats.catalog import Catalog
from data_pipeline.grid import Grid
from data_pipeline.task import Variable

Names = Mapping[str, str] | None
"""GRIB names of variables that a file calls otherwise, such as {"T850": "t@850"}, or {"228": "tp"} for a paramId."""


@dataclass(frozen=True)
class Request:
    """The fields that are wanted: those from which all `variables` can be made, all with None.

    `static` fields are those at the surface, whatever their date. With `summaries`, also means, standard deviations and
    quantiles of ensembles.
    """

    variables: Sequence[Variable] | None = None
    names: Names = None
    static: bool = False
    summaries: bool = False


class Format(ABC):
    """A format of files; a new one defines `name`, `detects` and `gather`, and the rest where it knows better.

    `name` is that of its reader in `reader_versions.READER_VERSIONS`.
    """

    name = ""
    is_store = False
    """Whether one of them may be a folder or a URL, whose contents `describe` identifies without reading all bytes."""

    @abstractmethod
    def detects(self, address: FileAddress) -> bool:
        """Return whether a file, folder or URL is of this format."""

    @abstractmethod
    def gather(self, addresses: Sequence[FileAddress], request: Request) -> Catalog:
        """Return the fields of all files that are wanted."""

    def first_grid(self, address: FileAddress, names: Names) -> Grid:
        """Return the grid of the first field."""
        return self.gather([address], Request(names=names)).reader.grid

    def stations(self, address: FileAddress, names: Names) -> Grid:
        """Return the stations in a file of them, which needs no fields if it is a table."""
        return self.first_grid(address, names)

    def starts(self, address: FileAddress, names: Names) -> np.ndarray:
        """Return the starts of the forecasts (seconds since 1970); fields without a start have none."""
        return np.unique(self.gather([address], Request(names=names)).rows["init"]).astype(np.int64)

    def describe(self, address: FileAddress) -> tuple[Any, ...]:
        """Return the number of fields, and what identifies a large file beside its sampled bytes."""
        return (0,)

    def summarize(self, paths: Paths, names: Names) -> str:
        """Return a description of the files for `deepweather prepare`."""
        files = expand_addresses(paths)
        return f"files        {len(files):,}, {format_size(total_bytes(files) or 0)}"

    def unreadable(self, paths: Paths, names: Names) -> dict[FileAddress, str]:
        """Return the files that cannot be read, with the reason."""
        return {}
