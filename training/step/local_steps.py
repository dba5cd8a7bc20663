"""Local steps: data ranks train on their own and average their weights from time to time (post-local SGD).

    Lin, Stich, Patel & Jaggi 2020, Don't use large mini-batches, use local SGD, arXiv:1808.07217

The first part of a run is synchronous: each step uses the gradient of the whole batch. After it, the ranks of one data
rank use the gradient of their own samples, and every `trainer.local_steps` steps all data ranks take the mean of their
weights. Tiles of the same samples still exchange cells and sum gradients in every step, so a step is exact whatever the
number of tiles. Each data rank keeps its own optimizer state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say, warn
from data_pipeline.sample import Sample
from models.parallel.exchange import process_group
from models.parallel.mesh import Mesh
from training.run.checkpoints import took_optimizer_step
from training.step.correction_module import CorrectionModule
from training.step.weight_average import WeightAverage

KEY = "local_steps"
"""The entry of a checkpoint with the state of each data rank."""


class LocalSteps(pl.Callback):
    """Starts the local steps after `fraction` of the run and averages the weights after every `interval` of them.

    The last step of an epoch ends with an average too, because validation and `best.ckpt` need weights that all ranks
    share. A moving average of the weights is linear in the weights, so its mean is taken only there.

    A checkpoint holds the mean of the weights, optimizer states and moving averages of all data ranks, which any mesh
    can use, and beside it the state of each data rank. With the same number of data ranks, a run resumes exactly, from
    these states; with another number, it resumes from the mean. This callback must run before `WeightAverage` and
    `LossHistory`.
    """

    def __init__(self, mesh: Mesh, interval: int, fraction: float, average: WeightAverage | None) -> None:
        self._mesh, self._interval, self._fraction, self._average = mesh, interval, fraction, average
        self._first_local = 0
        self._sums = torch.zeros(2, dtype=torch.float64)
        """Sums of this data rank's loss since the last average."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the first local step of the run."""
        assert isinstance(pl_module, CorrectionModule)
        self._first_local = math.ceil(self._fraction * pl_module.steps)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Sample, batch_idx: int
    ) -> None:
        """Set whether this step is local, for the loss and for the mean of gradients."""
        assert isinstance(pl_module, CorrectionModule)
        pl_module.local = trainer.global_step >= self._first_local
        if pl_module.local and trainer.global_step == self._first_local:
            say(
                f"local steps from step {self._first_local + 1} on: {self._mesh.data} data ranks average their weights "
                f"every {self._interval} steps"
            )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Sample, batch_idx: int
    ) -> None:
        """Average the weights if it is due; only then `outputs["sums"]` holds the loss of all data ranks, else 0."""
        assert isinstance(pl_module, CorrectionModule)
        if not pl_module.local:
            return
        self._sums = self._sums.to(outputs["sums"].device) + outputs["sums"]
        outputs["sums"] = torch.zeros_like(self._sums)
        last = batch_idx + 1 == trainer.num_training_batches
        number = trainer.global_step - self._first_local
        if not took_optimizer_step(trainer, batch_idx) or (number % self._interval and not last):
            return
        self._average_weights(pl_module)
        outputs["sums"], self._sums = self._mesh.sum_of_data(self._sums), torch.zeros_like(self._sums)

    @torch.no_grad()
    def _average_weights(self, module: nn.Module) -> None:
        take_mean([*module.parameters()], self._mesh)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Average the moving averages, before `WeightAverage` validates them."""
        if isinstance(pl_module, CorrectionModule) and pl_module.local and self._average is not None:
            take_mean([*self._average.means.values()], self._mesh)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put the mean over data ranks in place of the first rank's state, and keep the state of each data rank."""
        assert isinstance(pl_module, CorrectionModule)
        if not pl_module.local:
            return
        own = self._own_state(checkpoint) | {"sums": self._sums}
        states = self._mesh.gather_data(
            tree_map(lambda value: value.cpu() if isinstance(value, Tensor) else value, own)
        )
        if states is not None:
            self._put(checkpoint, mean_of(states))
            checkpoint[KEY] = states

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take the state of this data rank, or the mean if the number of data ranks has changed."""
        states = checkpoint.get(KEY)
        if not states:
            return
        if len(states) == self._mesh.data:
            own = states[self._mesh.data_rank]
            self._put(checkpoint, own)
            pl_module.load_state_dict(own["state_dict"])
            self._sums = own["sums"]
        else:
            warn(
                f"warning: the checkpoint has local steps of {len(states)} data ranks and this mesh has "
                f"{self._mesh.data}; the run resumes from the mean and will not equal an uninterrupted one"
            )
            self._sums = torch.stack([state["sums"] for state in states]).sum(0) / self._mesh.data

    def _own_state(self, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
        state = {"state_dict": checkpoint["state_dict"], "optimizer_states": checkpoint["optimizer_states"]}
        if self._average is not None:
            state["averages"] = checkpoint["callbacks"][self._average.state_key]
        return state

    def _put(self, checkpoint: dict[str, Any], state: Mapping[str, Any]) -> None:
        checkpoint |= {name: state[name] for name in ("state_dict", "optimizer_states")}
        if self._average is not None:
            checkpoint["callbacks"] = checkpoint["callbacks"] | {self._average.state_key: state["averages"]}


def check_local_steps(model: nn.Module) -> None:
    """Raise InputError for a model that exchanges messages between data ranks in every step."""
    if any(isinstance(layer, _BatchNorm) for layer in model.modules()):
        raise InputError(
            "trainer.local_steps needs data ranks that do not depend on each other, and batch normalisation takes its "
            "means over all of them; use another norm or model, or leave out trainer.local_steps"
        )


@torch.no_grad()
def take_mean(tensors: list[Tensor], mesh: Mesh) -> None:
    """Put the mean over data ranks in place of each tensor, by one message for each data type."""
    for kind in dict.fromkeys(tensor.dtype for tensor in tensors):
        same = [tensor for tensor in tensors if tensor.dtype is kind]
        flat = torch.cat([tensor.flatten() for tensor in same])
        dist.all_reduce(flat, group=process_group(mesh.alongside))
        flat /= mesh.data
        for tensor, part in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
            tensor.copy_(part.view_as(tensor))


def mean_of(states: list[Any]) -> Any:
    """Return the mean of nested states of the same structure; anything but a float tensor is taken from the first."""

    def mean(*values: Any) -> Any:
        first = values[0]
        if isinstance(first, Tensor) and first.is_floating_point():
            return torch.stack(values).mean(0)
        return first

    return tree_map(mean, *states)
