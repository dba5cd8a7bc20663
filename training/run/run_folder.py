"""The run folder: it belongs to one run, and the same command resumes that run from it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from data_pipeline.common.errors import DiskFullError, InputError, InterruptedRunError
from data_pipeline.common.files import LOCK_NAME, disk_error, lock_folder, write_text
from data_pipeline.common.identity import fingerprint_of
from training.run.fitted_state import FITTED_FILE

WITHOUT_EFFECT = {
    "data": ("cache",),
    "trainer": (
        "activation_checkpointing", "checkpoint_minutes", "emos_minutes", "memory", "mesh", "pruning", "shard_ranks",
        "sharded", "timeout_minutes",
    ),
}  # fmt: skip
"""Options that change the speed of a run, its end, or the work lost when it is killed, but no step of the training."""

RUN_FORMAT = 3
"""Format of options and checkpoints in a run folder. Runs of another format are refused, not resumed."""

MARKER, CURVES = "config.yaml", "tensorboard"
SUMMARY, LOGGERS, MEMORY_PLAN = (f"{name}.json" for name in ("summary", "loggers", "memory_plan"))
"""Together with `FITTED_FILE`, the files that a run writes before its first training step, the marker first."""
OF_LOGGERS = ("mlruns", "wandb")
"""Folders of loggers; they hold entries of other runs too, and are never removed."""


def claim(run_dir: Path, options: Mapping[str, Any], fingerprint: str) -> str:
    """Claim `run_dir` for a run and return the run's identity; refuse a folder of another run.

    The identity is a hash of the data's fingerprint and of the options that the result depends on.
    """
    described = {name: value for name, value in options.items() if name != "run_dir"}
    described |= {"fingerprint": fingerprint, "format": RUN_FORMAT}
    decisive = decisive_options(described)
    identity = fingerprint_of(decisive)
    marker = run_dir / MARKER
    if not marker.exists():
        write_text(marker, OmegaConf.to_yaml(OmegaConf.create(described | {"run": identity})))
        return identity
    held = OmegaConf.to_container(OmegaConf.load(marker))
    if not isinstance(held, dict):
        raise InputError(f"{marker} was not written by deepweather train; choose another run_dir")
    if held.get("format") != RUN_FORMAT:
        raise InputError(
            f"{marker} has format {held.get('format')}, this version resumes format {RUN_FORMAT}; finish the run with "
            "the version that began it, or choose another run_dir"
        )
    if held.get("run") != identity:
        other = [
            name
            for name, value in decisive.items()
            if name in held and _without(held[name], WITHOUT_EFFECT.get(name, ())) != value
        ]
        raise InputError(f"{run_dir} holds a run with other {' and '.join(other) or 'options'}; choose another run_dir")
    return identity


def decisive_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options on which the result of a run depends."""
    return {name: _without(value, WITHOUT_EFFECT.get(name, ())) for name, value in options.items()}


class FolderLock(ExitStack):
    """Keeps other processes out of a run folder: two runs of one command would write the same files.

    Used in a `with` statement, at whose end the lock is released; the system releases the lock of a killed process.
    """

    patience = 60.0
    """Seconds to wait for another process: the ranks of a killed launcher end by themselves, but not at once."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self._run_dir = run_dir

    def take(self) -> None:
        """Lock the claimed folder, and remove the unfinished files of a killed run; the first rank calls this."""
        self.enter_context(lock_folder(self._run_dir, self._run_dir / "checkpoints", patience=self.patience))


def _without(value: Any, names: Collection[str]) -> Any:
    """Return a group of options without the options `names`."""
    return {k: v for k, v in value.items() if k not in names} if isinstance(value, Mapping) else value


@contextmanager
def resumable(run_dir: Path) -> Iterator[None]:
    """Turn a full disk inside the block into an `InterruptedRunError`, which says that the run can be resumed.

    A run that is refused before its first training step releases the folder.
    """
    before = _names(run_dir)
    try:
        try:
            yield
        except OSError as error:
            # Raised by libraries that write files themselves: checkpoints, TensorBoard's events.
            raise disk_error(error, run_dir) or error from None
    except DiskFullError as error:
        raise InterruptedRunError(f"{error}; then run the same command again to resume") from None
    except InterruptedRunError:
        raise
    except InputError:
        created = _names(run_dir) - before
        files = {MARKER, LOCK_NAME, FITTED_FILE, SUMMARY, LOGGERS, MEMORY_PLAN}
        if MARKER in created and created <= {*files, CURVES, *OF_LOGGERS}:
            # All ranks that share this file system run this, so another rank may have removed a file already.
            for name in files - {LOCK_NAME}:
                (run_dir / name).unlink(missing_ok=True)
            if CURVES in created:
                shutil.rmtree(run_dir / CURVES, ignore_errors=True)
        raise


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
