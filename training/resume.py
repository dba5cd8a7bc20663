"""A run folder: it belongs to one run, and the run goes on from what it left there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from data_pipeline.common.errors import DiskFullError, InputError, InterruptedRunError
from data_pipeline.common.files import atomic_write, disk_error

WITHOUT_EFFECT = {
    "data": ("cache",),
    "trainer": ("checkpoint_minutes", "mesh", "recompute", "sharded", "timeout_minutes"),
}
"""Options that change how fast a run is and what it loses when killed, but not its result."""


MARKER, CURVES = "config.yaml", "tensorboard"
"""What a run puts into its folder before it has learnt anything, first the marker."""


def claim(run_dir: Path, options: Mapping[str, Any], fingerprint: str) -> str:
    """Make `run_dir` this run's own and return the run's identity; a folder of another run is refused.

    The identity is a hash of the options that the result depends on, and of the data's fingerprint.
    """
    described = {name: value for name, value in options.items() if name != "run_dir"} | {"fingerprint": fingerprint}
    decisive = {name: _without(value, WITHOUT_EFFECT.get(name, ())) for name, value in described.items()}
    identity = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]
    marker = run_dir / MARKER
    if marker.exists():
        held = OmegaConf.to_container(OmegaConf.load(marker))
        if not isinstance(held, dict) or held.get("run") != identity:
            other = [
                name
                for name, value in decisive.items()
                if isinstance(held, dict)
                and name in held
                and _without(held[name], WITHOUT_EFFECT.get(name, ())) != value
            ]
            raise InputError(
                f"{run_dir} holds a run with other {' and '.join(other) or 'options'}; "
                "choose another run_dir or remove that one"
            )
        return identity
    with atomic_write(marker, "w") as file:
        file.write(OmegaConf.to_yaml(OmegaConf.create(described | {"run": identity})))
    return identity


def _without(value: Any, names: Collection[str]) -> Any:
    """Return a group of options without those of `names`."""
    return {k: v for k, v in value.items() if k not in names} if isinstance(value, Mapping) else value


@contextmanager
def resumable(run_dir: Path) -> Iterator[None]:
    """Say of a disk that fills up in the block that the same command can go on when there is space again.

    A run that is refused before it has learnt anything does not keep the folder for itself.
    """
    before = _names(run_dir)
    try:
        try:
            yield
        except OSError as error:
            # From libraries that write by themselves: checkpoints, TensorBoard's events.
            raise disk_error(error, run_dir) or error from None
    except DiskFullError as error:
        raise InterruptedRunError(f"{error}; then run the same command again to go on") from None
    except InterruptedRunError:
        raise
    except InputError:
        made = _names(run_dir) - before
        if MARKER in made and made <= {MARKER, CURVES}:
            # All ranks on this file system do so.
            (run_dir / MARKER).unlink(missing_ok=True)
            if CURVES in made:
                shutil.rmtree(run_dir / CURVES, ignore_errors=True)
        raise


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
