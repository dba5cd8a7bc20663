"""TrainerOptions: the options of the group `trainer`, and their checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from data_pipeline.common.checks import (
    check_between,
    check_boolean,
    check_choice,
    check_integer,
    check_positive,
    size_in_bytes,
)
from data_pipeline.common.errors import InputError
from training.optimization.optimizer import ADAMW, check_optimizer, check_scheduler
from training.run.pruning import PruningOptions

Precision = Literal["32-true", "bf16-mixed"]
Compression = Literal["none", "fp16", "bf16"]
Matmul = Literal["highest", "high", "medium"]
Spec = Mapping[str, Any]


@dataclass(frozen=True)
class TrainerOptions:
    """Options of training by gradient descent; docs/training.md explains each of them.

    `optimizer`, `scheduler`, `callbacks` and `loggers` are specs, `{_target_: package.Class, ...}`, and `lightning`
    holds further flags of Lightning's Trainer. All names in them are checked here.

    `mesh` is [data, spatial], [data, bands, sectors] or [data, bands, sectors, channels]: how many ranks share
    a batch, and how many share a sample. A killed run loses at most `checkpoint_minutes` of work.
    """

    epochs: int = 15
    batch_size: int = 8
    memory: str | int | None = None
    accumulate_grad_batches: int = 1
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    optimizer: Spec | None = None
    scheduler: Spec | None = None
    gradient_clip: float | None = 1.0
    ema_decay: float = 0.0
    patience: int = 10
    early_stop_below: float | None = None
    pruning: Spec | None = None
    seed: int = 0
    accelerator: str = "auto"
    precision: Precision = "32-true"
    matmul_precision: Matmul = "high"
    compile: bool = False
    activation_checkpointing: bool = False
    checkpoint_minutes: float = 10.0
    emos_minutes: float = 10.0
    callbacks: Sequence[Spec] = field(default_factory=list)
    loggers: Sequence[Spec | str] | None = None
    lightning: Spec | None = None
    mesh: Sequence[int] | str = field(default_factory=lambda: [1, 1])
    sharded: bool = False
    shard_ranks: int | None = None
    compression: Compression = "none"
    timeout_minutes: float = 10.0
    local_steps: int = 1
    synchronous_fraction: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate_grad_batches", "patience", "local_steps"):
            check_integer(f"trainer.{name}", getattr(self, name), 1)
        check_integer("trainer.seed", self.seed, 0)
        if self.memory is not None:
            size_in_bytes("trainer.memory", self.memory)
        check_positive("trainer.learning_rate", self.learning_rate)
        for name in ("gradient_clip", "early_stop_below"):
            if getattr(self, name) is not None:
                check_positive(f"trainer.{name}", getattr(self, name))
        check_positive("trainer.checkpoint_minutes", self.checkpoint_minutes)
        check_positive("trainer.timeout_minutes", self.timeout_minutes)
        check_between("trainer.emos_minutes", self.emos_minutes, 0, math.inf)
        check_between("trainer.weight_decay", self.weight_decay, 0, 1)
        check_between("trainer.ema_decay", self.ema_decay, 0, 1)
        check_choice("trainer.accelerator", self.accelerator, ("auto", "cpu", "gpu"))
        check_choice("trainer.precision", self.precision, get_args(Precision))
        check_choice("trainer.matmul_precision", self.matmul_precision, get_args(Matmul))
        check_choice("trainer.compression", self.compression, get_args(Compression))
        for name in ("compile", "activation_checkpointing", "sharded"):
            check_boolean(f"trainer.{name}", getattr(self, name))
        if self.compile and self.activation_checkpointing:
            raise InputError(
                "trainer.compile and trainer.activation_checkpointing exclude each other, because the compiler chooses "
                "what is recomputed; set one of them to false"
            )
        if self.shard_ranks is not None:
            check_integer("trainer.shard_ranks", self.shard_ranks, 2)
            if not self.sharded:
                raise InputError("trainer.shard_ranks needs trainer.sharded=true; set it, or leave out shard_ranks")
        if self.sharded and self.compression != "none":
            raise InputError(
                "trainer.compression and trainer.sharded exclude each other, because sharded gradients are not "
                "compressed; set compression=none or sharded=false"
            )
        if self.pruning is not None:
            PruningOptions.of(self.pruning)
        self._check_local_steps()
        self._check_specs()

    def _check_local_steps(self) -> None:
        if self.synchronous_fraction is not None:
            check_between("trainer.synchronous_fraction", self.synchronous_fraction, 0, 1)
        if self.local_steps == 1:
            if self.synchronous_fraction is not None:
                raise InputError(
                    "trainer.synchronous_fraction is the part of a run before its local steps; "
                    "set trainer.local_steps to more than 1, or leave it out"
                )
            return
        for name, neutral in (("sharded", False), ("compression", "none")):
            if getattr(self, name) != neutral:
                raise InputError(
                    f"trainer.local_steps and trainer.{name} exclude each other, because the gradient of a local step "
                    f"stays on its data rank; set local_steps=1 or {name}={str(neutral).lower()}"
                )
        if next(iter(self.mesh), 1) == 1:
            raise InputError(
                f"trainer.local_steps averages the weights of data ranks, and trainer.mesh={list(self.mesh)} has one; "
                "set trainer.mesh=[2,1] or more, or local_steps=1"
            )

    def _check_specs(self) -> None:
        check_optimizer(ADAMW if self.optimizer is None else self.optimizer, self.learning_rate, self.weight_decay)
        if (self.optimizer or {}).get("fused") and self.precision == "bf16-mixed" and self.gradient_clip:
            raise InputError(
                "trainer.optimizer: with precision=bf16-mixed, Lightning clips no gradients of a fused optimizer; "
                "set fused: false, or trainer.gradient_clip=null"
            )
        if self.scheduler is not None:
            check_scheduler(self.scheduler)
        if any(part is not None and part != [] for part in (self.callbacks, self.loggers, self.lightning)):
            # Importing Lightning takes seconds, which a model that is fitted in closed form does not need.
            from training.run.lightning_options import check_lightning_options

            check_lightning_options(self)
