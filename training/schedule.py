"""Schedule: how long, how fast and on what a network is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from data_pipeline.checks import between, one_of, positive, whole

Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True)
class Schedule:
    """Options of gradient training; the learning rate rises for a third of all steps, then falls to zero.

    `patience` epochs without a better validation score end the run early. `accelerator` and `precision` go to
    Lightning as they are. A run that is killed loses no more than `checkpoint_minutes` of work.
    """

    epochs: int = 15
    batch_size: int = 8
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    gradient_clip: float = 1.0
    patience: int = 10
    seed: int = 0
    accelerator: str = "auto"
    precision: Precision = "32-true"
    checkpoint_minutes: float = 10.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            whole(f"trainer.{name}", getattr(self, name), 1)
        whole("trainer.seed", self.seed, 0)
        positive("trainer.learning_rate", self.learning_rate)
        positive("trainer.gradient_clip", self.gradient_clip)
        positive("trainer.checkpoint_minutes", self.checkpoint_minutes)
        between("trainer.weight_decay", self.weight_decay, 0, 1)
        one_of("trainer.accelerator", self.accelerator, ("auto", "cpu", "gpu"))
        one_of("trainer.precision", self.precision, get_args(Precision))
