"""CorrectionModule: the Lightning module that trains a corrector by its area-weighted CRPS."""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor

from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.sample import Sample
from models.corrector import Corrector
from models.distribution import Distribution
from models.spatial.dropout import drawn_for
from training.schedule import Schedule


class CorrectionModule(pl.LightningModule):
    """Minimises the mean CRPS over cells, targets and forecasts, each cell weighted by its area.

    The score is taken in normalised units, so that targets of different size count alike. An epoch has `steps` steps.
    """

    area: Tensor

    def __init__(self, corrector: Corrector, schedule: Schedule, steps: int) -> None:
        super().__init__()
        self.corrector, self.schedule, self._steps = corrector, schedule, steps
        weights = torch.tensor(corrector.grid.weights, dtype=torch.float32)[:, None]
        self.register_buffer("area", weights.expand(corrector.grid.shape).clone(), persistent=False)

    def training_step(self, batch: Sample, index: int) -> Tensor:
        """Return the loss of a batch; `History` takes the mean over an epoch."""
        with drawn_for(batch):
            return self._score(batch)

    def validation_step(self, batch: Sample, index: int) -> None:
        """Log the score of a batch of validation years."""
        self.log("val_crps", self._score(batch), batch_size=len(batch.target))

    def _score(self, batch: Sample) -> Tensor:
        sample = self.corrector.normalizer(batch)
        return weighted_crps(self.corrector.model(sample), sample.target, self.area)

    def on_train_epoch_start(self) -> None:
        """Tell the loader which epoch comes; one that goes on half-way knows it from the checkpoint."""
        loader = self.trainer.train_dataloader
        assert isinstance(loader, Prefetcher)
        loader.set_epoch(self.current_epoch)

    def on_train_batch_start(self, batch: Sample, batch_idx: int) -> None:
        """Name the step's random numbers (dropout) by seed and step: a resumed run is the same run."""
        torch.manual_seed(self.schedule.seed * 1_000_003 + self.global_step)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW under a one-cycle learning rate (Smith & Topin 2019, arXiv:1708.07120)."""
        options = self.schedule
        optimizer = torch.optim.AdamW(
            self.corrector.model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
        )
        # Not `trainer.estimated_stepping_batches`: it sets the loader up before the checkpoint is read, and then
        # Lightning does not give the loader its state.
        steps = self._steps * options.epochs
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.learning_rate, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


def weighted_crps(distribution: Distribution, truth: Tensor, area: Tensor) -> Tensor:
    """Return the mean CRPS weighted by `area` (H, W) over all (B, T, H, W) where there is a truth."""
    known = torch.isfinite(truth)
    # The score of an unknown truth is taken at the mean and given no weight: NaN would poison the gradient.
    crps = distribution.crps(torch.where(known, truth, distribution.mean.detach()))
    weight = known * area
    return (crps * weight).sum() / weight.sum().clamp(min=torch.finfo(area.dtype).tiny)
