"""Exponential moving average of the weights: it scores better than the latest weights while these still fluctuate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from data_pipeline.sample import Sample
from training.run.checkpoints import took_optimizer_step
from training.step.mesh_strategy import gather_full, local_part, reshard


class WeightAverage(pl.Callback):
    """Averages the weights w after each step: a ← d a + (1 - d) w with d = min(decay, (1 + t) / (10 + t)).

    t is the number of earlier steps (Polyak & Juditsky 1992, doi:10.1137/0330046). The running means and variances of
    batch normalisation are averaged too, because they belong to the weights. Validation uses the averages.
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.means: dict[str, Tensor] = {}
        """The averages, by the names of the weights."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start from the current weights, or from the averages of a checkpoint."""
        self.means = {
            name: local_part(self.means.get(name, weight), weight).detach().to(weight.device, copy=True)
            for name, weight in _weights(pl_module).items()
        }

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Sample, batch_idx: int
    ) -> None:
        """Update the averages, if this batch completed an optimizer step."""
        if not took_optimizer_step(trainer, batch_idx):
            return
        before = trainer.global_step - 1
        kept = min(self._decay, (1 + before) / (10 + before))
        for name, weight in _weights(pl_module).items():
            self.means[name].lerp_(weight, 1 - kept)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Swap the averages in."""
        self._swap(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Swap the weights back."""
        self._swap(pl_module)

    @torch.no_grad()
    def _swap(self, module: pl.LightningModule) -> None:
        for name, weight in _weights(module).items():
            mean = self.means[name]
            kept = mean.clone()
            mean.copy_(weight)
            weight.copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages as full tensors, for the checkpoint."""
        means: dict[str, Any] = gather_full(self.means)
        return means

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the averages from a checkpoint."""
        self.means = dict(state_dict)


def validated_weights(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the weights that a checkpoint was validated with: the averages, if it has them."""
    return {**checkpoint["state_dict"], **checkpoint["callbacks"].get(WeightAverage.__qualname__, {})}


def _weights(module: pl.LightningModule) -> dict[str, Tensor]:
    """Return the tensors that are averaged, by their names in the state of the module."""
    reshard(module)
    found: dict[str, Tensor] = dict(module.named_parameters())
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            found |= {f"{name}.{key}": layer.get_buffer(key) for key in ("running_mean", "running_var")}
    return found
