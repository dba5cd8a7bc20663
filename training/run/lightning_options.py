"""Checks of the options of `trainer` that name Lightning's classes and flags."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl

from data_pipeline.common.errors import InputError
from training.optimization.specs import check_spec
from training.run.loggers import check_logger

if TYPE_CHECKING:
    from training.run.trainer_options import TrainerOptions

OWNED = {
    "accelerator": "set trainer.accelerator",
    "strategy": "set trainer.mesh, trainer.sharded and trainer.compression",
    "devices": "set trainer.mesh",
    "num_nodes": "set trainer.mesh",
    "precision": "set trainer.precision",
    "logger": "set trainer.loggers",
    "callbacks": "set trainer.callbacks",
    "max_epochs": "set trainer.epochs",
    "accumulate_grad_batches": "set trainer.accumulate_grad_batches",
    "gradient_clip_val": "set trainer.gradient_clip",
    "default_root_dir": "set run_dir",
    "max_steps": "the scheduler needs whole epochs; set trainer.epochs",
    "fast_dev_run": "it saves no checkpoints, which the corrector needs; set trainer.epochs=1",
    "barebones": "it saves no checkpoints, which the corrector needs",
    "enable_checkpointing": "checkpoints are always saved",
    "num_sanity_val_steps": "the first validation covers all validation years, to compare all epochs with it",
    "val_check_interval": "every epoch ends with a validation, which selects the best weights",
    "check_val_every_n_epoch": "every epoch ends with a validation, which selects the best weights",
    "limit_val_batches": "the best weights are selected on all validation years; change data.split.val",
    "limit_test_batches": "training runs no test",
    "limit_predict_batches": "training runs no prediction",
    "overfit_batches": "it validates on training data; change data.split",
    "use_distributed_sampler": "trainer.mesh distributes the samples among ranks",
    "reload_dataloaders_every_n_epochs": "batches are prefetched across epochs",
    "sync_batchnorm": "set model.norm, whose statistics cover all ranks",
}
"""Flags of Lightning's Trainer that `trainer.lightning` must not set, and what to do instead."""


def check_lightning_options(options: TrainerOptions) -> None:
    """Refuse callbacks, loggers or flags that Lightning does not have, or that other options set."""
    for index, spec in enumerate(_listed("trainer.callbacks", options.callbacks)):
        check_spec(f"trainer.callbacks[{index}]", spec, pl.Callback)
    for index, spec in enumerate(_listed("trainer.loggers", options.loggers)):
        check_logger(f"trainer.loggers[{index}]", spec)
    _check_flags(options)


def _check_flags(options: TrainerOptions) -> None:
    flags = {} if options.lightning is None else options.lightning
    if not isinstance(flags, Mapping):
        raise InputError(f"trainer.lightning must be {{flag: value, ...}}, got {flags!r}")
    known = [name for name in inspect.signature(pl.Trainer).parameters if name not in OWNED]
    for flag, value in flags.items():
        if flag in OWNED:
            raise InputError(f"trainer.lightning must not set {flag}: {OWNED[flag]}")
        if flag not in known:
            close = difflib.get_close_matches(str(flag), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(known)}"
            raise InputError(f"trainer.lightning: Lightning's Trainer has no flag {flag!r}; {hint}")
        for index, inner in enumerate(value if isinstance(value, list | tuple) else [value]):
            if isinstance(inner, Mapping) and "_target_" in inner:
                check_spec(f"trainer.lightning.{flag}[{index}]", inner, object)


def _listed(option: str, specs: Any) -> Sequence[Any]:
    if specs is not None and not isinstance(specs, list | tuple):
        raise InputError(f"{option} must be a list of {{_target_: package.Class, ...}}, got {specs!r}")
    return specs or []
