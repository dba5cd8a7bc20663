"""Packages that a slim installation lacks: `pip install deepweather` corrects forecasts, its extras do more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from data_pipeline.common.errors import InputError

OURS = ("conf", "data_pipeline", "deepweather", "evaluation", "models", "training")
"""Packages of this project; one that is missing is a bug."""


@contextmanager
def package(purpose: str, extra: str) -> Iterator[None]:
    """Raise `InputError` for a package that an import in the block does not find; `extra` has the package.

    `purpose` is the subject of the sentence, such as `reading NetCDF`.
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
