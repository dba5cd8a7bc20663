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
from models.spatial.mesh import Mesh
from training.schedule import Schedule


class CorrectionModule(pl.LightningModule):
    """Minimises the mean CRPS over cells, targets and forecasts, each cell weighted by its area.

    The score is taken in normalised units, so that targets of different size count alike. An epoch has `steps` steps.
    On a mesh the mean is that over all its ranks, whatever the sizes of tiles and batches.
    """

    area: Tensor

    def __init__(self, corrector: Corrector, schedule: Schedule, steps: int, mesh: Mesh) -> None:
        super().__init__()
        self.corrector, self.schedule, self.mesh, self._steps = corrector, schedule, mesh, steps
        weights = torch.tensor(corrector.grid.weights, dtype=torch.float32)[:, None]
        self.register_buffer("area", weights.expand(corrector.grid.shape).clone(), persistent=False)
        self._validated: list[Tensor] = []

    def training_step(self, batch: Sample, index: int) -> dict[str, Tensor]:
        """Return the own share of the loss, times the ranks; and the sums of all, of which `History` takes the mean."""
        with drawn_for(batch):
            score, weight = self.crps(batch)
        sums = self.mesh.sum(torch.stack([score.detach().double(), weight.double()]))
        return {"loss": score * (self.mesh.ranks / at_least_tiny(sums[1])).to(score), "sums": sums}

    def on_validation_epoch_start(self) -> None:
        """Begin anew."""
        self._validated = []

    def validation_step(self, batch: Sample, index: int) -> None:
        """Keep the score of a batch of validation years, on its device."""
        self._validated.append(torch.stack(self.crps(batch)).double())

    def on_validation_epoch_end(self) -> None:
        """Log the score of all."""
        score, weight = self.mesh.sum(torch.stack(self._validated).sum(0))
        self.log("val_crps", score / at_least_tiny(weight))

    def crps(self, batch: Sample) -> tuple[Tensor, Tensor]:
        """Return what the own tile of a batch adds to the weighted sum of the score, and to the sum of the weights."""
        sample = self.corrector.normalizer(batch)
        return weighted_crps(self.corrector.model(sample), sample.target, self.corrector.domain.cut(self.area))

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


def weighted_crps(distribution: Distribution, truth: Tensor, area: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the CRPS weighted by `area` (H, W) over all (B, T, H, W) with a truth, and that of weights."""
    known = torch.isfinite(truth)
    # The score of an unknown truth is taken at the mean and given no weight: NaN would poison the gradient.
    crps = distribution.crps(torch.where(known, truth, distribution.mean.detach()))
    weight = known * area
    return (crps * weight).sum(), weight.sum()


def at_least_tiny(weight: Tensor) -> Tensor:
    """Return a sum of weights by which one can divide: where no truth is known at all, the mean is 0."""
    return weight.clamp(min=torch.finfo(torch.float32).tiny)
