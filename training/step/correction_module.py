"""CorrectionModule: the Lightning module that trains a corrector."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.sample import Sample
from models.corrector import Corrector
from models.device import copy_batch
from models.distribution import Distribution
from models.layers.dropout import draw_step_key, masks_for
from models.layers.loss_term import LossTermLayer, loss_terms
from models.parallel.mesh import Mesh
from training.optimization.loss import CRPS, Loss, weights_of_cells
from training.optimization.optimizer import decay_groups, make_optimizer, make_scheduler
from training.optimization.teacher import Teacher
from training.run.trainer_options import TrainerOptions
from training.step.batch_loss import BatchLoss


class CorrectionModule(BatchLoss, pl.LightningModule):
    """Minimises the mean of `loss` over cells, targets and forecasts, with the cell weights of the loss.

    On a `mesh` the mean is over all ranks, whatever the sizes of tiles and batches. Without a mesh the module runs
    under any `pytorch_lightning.Trainer`. It reads learning rate, weight decay, optimizer, scheduler and seed from
    `options`; the number of steps is the Trainer's. Give the number of `batches` of an epoch if their loader has a
    state: `estimated_stepping_batches` of a resumed Trainer prevents Lightning from restoring that state. `raw` returns
    the raw ensemble of a normalised batch; its CRPS is computed once, in the sanity check, which reads all validation
    samples. The loss against the forecasts of a `teacher` is part of the training loss, but not of the validation loss.
    """

    def __init__(
        self,
        corrector: Corrector,
        options: TrainerOptions | None = None,
        loss: Loss | None = None,
        mesh: Mesh | None = None,
        batches: int | None = None,
        raw: Callable[[Sample], Distribution] | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        super().__init__(corrector, options, mesh)
        self.loss, self._batches, self._raw = loss or CRPS(), batches, raw
        self._teacher = teacher
        self.local = False
        """Whether a step is local: its loss covers the samples of this data rank only (`training.step.local_steps`)."""
        self._has_loss_terms = any(isinstance(layer, LossTermLayer) for layer in corrector.model.modules())
        self._validated: list[dict[str, Tensor]] = []

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Copy a batch to a GPU while the GPU computes the previous step."""
        if isinstance(batch, Sample):
            return copy_batch(batch, device)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def training_step(self, batch: Sample, index: int) -> dict[str, Tensor]:
        """Return this rank's share of the loss, times the number of ranks, and the sums over all ranks.

        In a local step, "all ranks" are the ranks of this data rank.
        """
        if self.micro_batch is not None:
            return self._step_in_parts(batch, index)
        with masks_for(batch):
            value, weight = self.training_loss(batch)
        sums = self._sum_of_step(torch.stack([value.detach().double(), weight.double()]))
        total = value / clamp_to_tiny(sums[1])
        if self._has_loss_terms:
            total = total + loss_terms(self.corrector.model) * self._share(len(batch.target), weight)
        ranks = self.mesh.tiles if self.local else self.mesh.ranks
        return {"loss": (total * ranks).to(value), "sums": sums}

    def _sum_of_step(self, x: Tensor) -> Tensor:
        return self.mesh.sum_of_tiles(x) if self.local else self.mesh.sum(x)

    def _step_in_parts(self, batch: Sample, index: int) -> dict[str, Tensor]:
        """Return the result of `training_step`, computed in parts; add up the gradients of all parts but the last.

        The weights of all forecasts are summed first, so that the gradient is exact for the whole batch, whatever the
        number of cells with truth in each micro-batch. DDP exchanges gradients in the backward pass of the last one.
        """
        accumulated, model = self.options.accumulate_grad_batches, self.corrector.model
        if index % accumulated == 0:
            self.zero_grad()
        parts, step = self._micro_batches(batch), draw_step_key()
        forecast_parts = -(-len(batch.target) // self.micro_batch) if self.micro_batch else 1
        weight = torch.stack([self._sum_of_weights(part) for part in parts]).sum()
        total = self._sum_of_step(weight.double())
        ranks = self.mesh.tiles if self.local else self.mesh.ranks
        share = self._share(len(batch.target), weight) if self._has_loss_terms else None
        own, whole, score = torch.zeros(()), torch.zeros(()), torch.zeros((), dtype=torch.float64)
        for number, part in enumerate(parts):
            with masks_for(part, step):
                value, _ = self.training_loss(part)
            own = value / clamp_to_tiny(total)
            if share is not None:
                # A part that only makes up the number of parts must not train gates.
                own = own + loss_terms(model) * share * (number < forecast_parts)
            own = (own * ranks).to(value)
            score, whole = score + value.detach().double(), whole + own.detach()
            if number + 1 < len(parts):
                # Lightning's backward pass is not inside autocast either.
                with torch.autocast(own.device.type, enabled=False):
                    (own / accumulated).backward()
        return {"loss": own + (whole - own.detach()), "sums": torch.stack([self._sum_of_step(score), total])}

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Reset the gradients, unless `training_step` has done this before its first backward pass."""
        if self.micro_batch is None:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    @torch.no_grad()
    def _sum_of_weights(self, part: Sample) -> Tensor:
        """Return the sum of weights that `weighted_loss` returns, without computing a forecast."""
        target = self._normalised(part).target
        return weights_of_cells(self.loss, target, self.corrector.domain.cut(self.area)).sum()

    def _share(self, forecasts: int, weight: Tensor) -> Tensor:
        """Return the weight of each of this rank's `forecasts` in the mean over the forecasts of all ranks.

        If the batch is too small, some ranks get no forecast. They have no truth, and their terms do not count.
        """
        mesh = self.mesh
        known = torch.zeros(mesh.data, 2, dtype=torch.float64, device=weight.device)
        known[mesh.data_rank, 0] = weight
        known[mesh.data_rank, 1].fill_(forecasts / mesh.tiles)  # an assigned number would be copied, and waited for
        known = self._sum_of_step(known)
        takes_part = known[:, 0] > 0
        return takes_part[mesh.data_rank] / clamp_to_tiny((known[:, 1] * takes_part).sum())

    def on_validation_epoch_start(self) -> None:
        """Reset the sums."""
        self._validated = []

    def validation_step(self, batch: Sample, index: int) -> None:
        """Keep loss and CRPS of a validation batch on its device."""
        for part in self._micro_batches(batch):
            self._validated.append(self._validation_sums(part))

    def _validation_sums(self, batch: Sample) -> dict[str, Tensor]:
        sample = self._normalised(batch)
        forecast = self.corrector.model(sample)
        loss = self._weighted(self.loss, forecast, sample)
        sums = {"val_loss": loss, "val_crps": loss if self.loss == CRPS() else self._weighted(CRPS(), forecast, sample)}
        if self._raw is not None and self.trainer.sanity_checking:
            sums["val_crps_raw"] = self._weighted(CRPS(), self._raw(sample), sample)
        return {name: torch.stack(pair).double() for name, pair in sums.items()}

    def on_validation_epoch_end(self) -> None:
        """Log the loss over all validation years as `val_loss`, and the CRPS as `val_crps`."""
        names = list(self._validated[0])
        sums = self.mesh.sum(
            torch.stack([torch.stack([each[name] for each in self._validated]).sum(0) for name in names])
        )
        # Ranks of a mesh have the same sums; ranks of another strategy do not.
        foreign = self.mesh.ranks < self.trainer.world_size
        for name, (value, weight) in zip(names, sums, strict=True):
            self.log(name, value / clamp_to_tiny(weight), sync_dist=foreign)

    def training_loss(self, batch: Sample) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the loss, including a teacher's part, and the sum of the weights."""
        sample = self._normalised(batch)
        forecast = self.corrector.model(sample)
        value, weight = self._weighted(self.loss, forecast, sample)
        if self._teacher is None:
            return value, weight

        def loss_of(target: Tensor) -> Tensor:
            return self._weighted(self.loss, forecast, sample._replace(target=target))[0]

        quantiles = self.corrector.normalizer.normalise_targets(self._teacher.quantiles(batch))
        return self._teacher.mixed(value, loss_of, quantiles, sample.target), weight

    def on_train_epoch_start(self) -> None:
        """Pass the epoch to the loader. A loader that resumes inside an epoch has it from the checkpoint."""
        if isinstance(loader := self.trainer.train_dataloader, Prefetcher):
            loader.set_epoch(self.current_epoch)

    def on_train_batch_start(self, batch: Sample, batch_idx: int) -> None:
        """Seed the random numbers of the batch (dropout) by seed and step, so that a resumed run is the same run.

        All ranks get the same seed; layers derive their random numbers from it by sample and cell.
        """
        part = batch_idx % self.trainer.accumulate_grad_batches
        seed = self.options.seed * 1_000_003 + self.global_step + 1_000_000_007 * part
        # Not `torch.manual_seed`: without a GPU it keeps a stack trace for each kind of device, 5 ms in every step.
        torch.default_generator.manual_seed(seed)
        # Callbacks and models of users may draw from these generators.
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)

    def configure_optimizers(self) -> Any:
        """Return optimizer and scheduler for the number of steps of the Trainer."""
        options, epochs = self.options, self.trainer.max_epochs or 0
        steps_of_epoch = self._steps_of_epoch()
        if epochs < 1 or steps_of_epoch < 1:
            raise InputError("the number of steps is unknown; give the Trainer max_epochs and data with a length")
        self.steps = epochs * steps_of_epoch
        """Optimizer steps of the whole run."""
        groups = decay_groups(self.corrector.model, options.weight_decay, self.corrector.grid.shape)
        optimizer = make_optimizer(options.optimizer, groups, options.learning_rate)
        scheduler = make_scheduler(options.scheduler, optimizer, options.learning_rate, self.steps, epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def _steps_of_epoch(self) -> int:
        trainer = self.trainer
        if self._batches is None:
            steps = trainer.estimated_stepping_batches / max(trainer.max_epochs or 1, 1)
            return math.ceil(steps) if math.isfinite(steps) else 0
        limit = trainer.limit_train_batches
        batches = min(self._batches, limit) if isinstance(limit, int) else int(self._batches * (limit or 1.0))
        return math.ceil(batches / trainer.accumulate_grad_batches)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step a scheduler, except after the last step of the run: some schedulers have no next learning rate."""
        if self.global_step < self.steps and not isinstance(scheduler, ReduceLROnPlateau):
            super().lr_scheduler_step(scheduler, metric)

    def on_train_epoch_end(self) -> None:
        """Step a scheduler that follows a metric.

        Lightning would do this after the callbacks saved the epoch, and a run resumed from there would miss the step.
        """
        for config in self.trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and (self.current_epoch + 1) % config.frequency == 0:
                name = str(config.monitor)
                if name not in self.trainer.callback_metrics:
                    known = ", ".join(self.trainer.callback_metrics)
                    raise InputError(f"trainer.scheduler.monitor: there is no metric {name!r}; there is {known}")
                assert isinstance(config.scheduler, ReduceLROnPlateau)
                config.scheduler.step(float(self.trainer.callback_metrics[name]))


def clamp_to_tiny(weight: Tensor) -> Tensor:
    """Return a positive sum of weights to divide by: the mean is 0 where there is no truth at all."""
    return weight.clamp(min=torch.finfo(torch.float32).tiny)
