"""CorrectionModule: the Lightning module that trains a corrector by its area-weighted loss."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.sample import Sample, verifiable
from models.corrector import Corrector
from models.spatial.dropout import drawn_for
from models.spatial.mesh import Mesh
from models.spatial.term import Termed, terms
from training.loss import CRPS, Loss, weighted_sum
from training.schedule import Schedule


class CorrectionModule(pl.LightningModule):
    """Minimises the mean of `loss` over cells, targets and forecasts, each cell weighted as the loss says.

    Cells without a truth, or where a raw member of the target is missing, do not count: evaluation leaves them out too.

    It is taken in normalised units, so that targets of different size count alike. An epoch has `steps` steps.
    On a mesh the mean is that over all its ranks, whatever the sizes of tiles and batches.
    """

    area: Tensor

    def __init__(
        self, corrector: Corrector, schedule: Schedule, steps: int, mesh: Mesh, loss: Loss | None = None
    ) -> None:
        super().__init__()
        self.corrector, self.schedule, self.mesh, self._steps = corrector, schedule, mesh, steps
        self.loss = loss or CRPS()
        self._termed = any(isinstance(layer, Termed) for layer in corrector.model.modules())
        weights = torch.tensor(corrector.grid.weights, dtype=torch.float32)[:, None]
        self.register_buffer("area", weights.expand(corrector.grid.shape).clone(), persistent=False)
        self._validated: list[Tensor] = []
        self._scores: list[float] = []

    def training_step(self, batch: Sample, index: int) -> dict[str, Tensor]:
        """Return the own share of the loss, times the ranks; and the sums of all, of which `History` takes the mean."""
        with drawn_for(batch):
            value, weight = self.weighted(self.loss, batch)
        sums = self.mesh.sum(torch.stack([value.detach().double(), weight.double()]))
        total = value / at_least_tiny(sums[1])
        if self._termed:
            total = total + terms(self.corrector.model) * self._share(len(batch.target), weight)
        return {"loss": (total * self.mesh.ranks).to(value), "sums": sums}

    def _share(self, forecasts: int, weight: Tensor) -> Tensor:
        """Return what each of the own `forecasts` is of those of all ranks.

        Ranks that only watch, because the batch is too small for all, have no truth, and their terms do not count.
        """
        mesh = self.mesh
        known = torch.zeros(mesh.data, 2, dtype=torch.float64, device=weight.device)
        known[mesh.data_rank, 0], known[mesh.data_rank, 1] = weight, forecasts / mesh.tiles
        known = mesh.sum(known)
        takes_part = known[:, 0] > 0
        return takes_part[mesh.data_rank] / at_least_tiny((known[:, 1] * takes_part).sum())

    def on_validation_epoch_start(self) -> None:
        """Begin anew."""
        self._validated = []

    def validation_step(self, batch: Sample, index: int) -> None:
        """Keep the loss of a batch of validation years, on its device."""
        self._validated.append(torch.stack(self.weighted(self.loss, batch)).double())

    def on_validation_epoch_end(self) -> None:
        """Log the loss of all, and note it for the rate."""
        value, weight = self.mesh.sum(torch.stack(self._validated).sum(0))
        score = value / at_least_tiny(weight)
        self.log("val_loss", score)
        if not self.trainer.sanity_checking:
            self._scores.append(float(score))

    def weighted(self, loss: Loss, batch: Sample) -> tuple[Tensor, Tensor]:
        """Return what the own tile of a batch adds to the weighted sum of a loss, and to the sum of the weights."""
        corrector = self.corrector
        normalizer, area = corrector.normalizer, corrector.domain.cut(self.area)
        sample = normalizer(batch._replace(target=verifiable(batch, corrector.task.target_channels)))
        return weighted_sum(loss, corrector.model(sample), sample, area, normalizer)

    def on_train_epoch_start(self) -> None:
        """Tell the loader which epoch comes; one that goes on half-way knows it from the checkpoint."""
        loader = self.trainer.train_dataloader
        assert isinstance(loader, Prefetcher)
        loader.set_epoch(self.current_epoch)

    def on_train_batch_start(self, batch: Sample, batch_idx: int) -> None:
        """Name the step's random numbers (dropout) by seed and step, set its pace: a resumed run is the same run."""
        options, step = self.schedule, self.global_step
        # Not `torch.manual_seed`: without a GPU it keeps a stack trace for each kind of device, 5 ms in every step.
        torch.default_generator.manual_seed(options.seed * 1_000_003 + step)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(options.seed * 1_000_003 + step)
        rate, momentum = options.rate(step, self._steps * options.epochs, self._scores)
        for group in self.trainer.optimizers[0].param_groups:
            group |= {"lr": options.learning_rate * rate, "betas": (momentum, group["betas"][1])}

    def configure_optimizers(self) -> Optimizer:
        """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101); every step sets its own pace."""
        options = self.schedule
        return AdamW(self.corrector.model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the scores that the rate looks at."""
        checkpoint["scores"] = self._scores

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take them back."""
        self._scores = list(checkpoint["scores"])


def at_least_tiny(weight: Tensor) -> Tensor:
    """Return a sum of weights by which one can divide: where no truth is known at all, the mean is 0."""
    return weight.clamp(min=torch.finfo(torch.float32).tiny)
