"""Packages that a slim installation lacks: `pip install deepweather` corrects forecasts; extras add the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from data_pipeline.common.errors import InputError

OURS = ("conf", "data_pipeline", "deepweather", "evaluation", "models", "training")
"""Packages of this project; if one of these is missing, it is a bug."""


@contextmanager
def package(purpose: str, extra: str) -> Iterator[None]:
    """Raise `InputError` if an import in the block does not find a package; the message names the `extra` to install.

    `purpose` is the subject of the message, such as `reading NetCDF`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", *OURS):
            raise
        raise InputError(
            f"{purpose} needs the package {name}, which is not installed; run: pip install 'deepweather[{extra}]'"
        ) from None
