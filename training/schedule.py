"""Schedule: how long, how fast and on what a network is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from data_pipeline.checks import between, one_of, positive, whole, yes_or_no
from data_pipeline.errors import InputError
from training.rates import OneCycle, Rate

Precision = Literal["32-true", "bf16-mixed"]
Compression = Literal["none", "fp16", "bf16"]


@dataclass(frozen=True)
class Schedule:
    """Options of gradient training (docs/training.md); `rate` says which part of `learning_rate` each step gets.

    With `ema` what is validated and kept are averages of the weights (`training.average`). `patience` epochs without a
    better validation loss end the run early, and so does a loss below `enough`. `accelerator` and `precision` go to
    Lightning as they are. `compile` is by torch.compile; with `recompute` less is kept in memory
    (`training.recompute`). A run that is killed loses no more than `checkpoint_minutes` of work.

    `mesh` is [data, spatial] or [data, bands, sectors]: how many ranks share a batch, and how many share each sample.
    With `sharded`, each keeps but its part of weights and optimizer (FSDP); `compression` is how gradients travel.
    A rank that the others have not heard of for `timeout_minutes` is given up.
    """

    epochs: int = 15
    batch_size: int = 8
    learning_rate: float = 2e-3
    rate: Rate = field(default_factory=OneCycle)
    weight_decay: float = 1e-2
    gradient_clip: float | None = 1.0
    ema: float = 0.0
    patience: int = 10
    enough: float | None = None
    seed: int = 0
    accelerator: str = "auto"
    precision: Precision = "32-true"
    compile: bool = False
    recompute: bool = False
    checkpoint_minutes: float = 10.0
    mesh: Sequence[int] = field(default_factory=lambda: [1, 1])
    sharded: bool = False
    compression: Compression = "none"
    timeout_minutes: float = 10.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            whole(f"trainer.{name}", getattr(self, name), 1)
        whole("trainer.seed", self.seed, 0)
        positive("trainer.learning_rate", self.learning_rate)
        for name in ("gradient_clip", "enough"):
            if getattr(self, name) is not None:
                positive(f"trainer.{name}", getattr(self, name))
        positive("trainer.checkpoint_minutes", self.checkpoint_minutes)
        positive("trainer.timeout_minutes", self.timeout_minutes)
        between("trainer.weight_decay", self.weight_decay, 0, 1)
        between("trainer.ema", self.ema, 0, 1)
        one_of("trainer.accelerator", self.accelerator, ("auto", "cpu", "gpu"))
        one_of("trainer.precision", self.precision, get_args(Precision))
        one_of("trainer.compression", self.compression, get_args(Compression))
        for name in ("compile", "recompute", "sharded"):
            yes_or_no(f"trainer.{name}", getattr(self, name))
        if self.compile and self.recompute:
            raise InputError(
                "trainer.compile decides by itself what is computed twice; choose it or trainer.recompute=true"
            )
        if self.sharded and self.compression != "none":
            raise InputError(
                "trainer.compression is of gradients that are whole on every rank; choose it or trainer.sharded=true"
            )
