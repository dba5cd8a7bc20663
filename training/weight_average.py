"""Average: the moving average of the weights, which scores better than the last ones while these still jump about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from data_pipeline.sample import Sample
from training.checkpoints import took_optimizer_step
from training.mesh_strategy import local_part, reshard, whole


class Average(pl.Callback):
    """After each step a ← d a + (1 - d) w with d = min(decay, (1 + t) / (10 + t)), t being the steps before it.

    The average (Polyak & Juditsky 1992, doi:10.1137/0330046) is of all weights, and of the means and variances that
    batch normalisation has seen, for those belong to the weights that made them. It is what is validated.
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._means: dict[str, Tensor] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin with the weights as they are, or go on with what a checkpoint held."""
        self._means = {
            name: local_part(self._means.get(name, weight), weight).detach().to(weight.device, copy=True)
            for name, weight in _weights(pl_module).items()
        }

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Sample, batch_idx: int
    ) -> None:
        """Take in the weights of the step, if the batch has ended one."""
        if not took_optimizer_step(trainer, batch_idx):
            return
        before = trainer.global_step - 1
        kept = min(self._decay, (1 + before) / (10 + before))
        for name, weight in _weights(pl_module).items():
            self._means[name].lerp_(weight, 1 - kept)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the averages in the place of the weights."""
        self._swap(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the weights back."""
        self._swap(pl_module)

    @torch.no_grad()
    def _swap(self, module: pl.LightningModule) -> None:
        for name, weight in _weights(module).items():
            mean = self._means[name]
            kept = mean.clone()
            mean.copy_(weight)
            weight.copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, whole, for the checkpoint."""
        means: dict[str, Any] = whole(self._means)
        return means

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them back from a checkpoint."""
        self._means = dict(state_dict)


def validated(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the weights of a checkpoint as they were validated: averages, where there are any."""
    return {**checkpoint["state_dict"], **checkpoint["callbacks"].get(Average.__qualname__, {})}


def _weights(module: pl.LightningModule) -> dict[str, Tensor]:
    """Return what is averaged, by its name in the state of the module."""
    reshard(module)
    found: dict[str, Tensor] = dict(module.named_parameters())
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            found |= {f"{name}.{key}": layer.get_buffer(key) for key in ("running_mean", "running_var")}
    return found
