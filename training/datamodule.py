"""ForecastDataModule: the forecasts of an archive as a Lightning data module, for any `pytorch_lightning.Trainer`."""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from data_pipeline.common.checks import check_integer
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import Grid
from data_pipeline.protocols import DataSource
from data_pipeline.sample import Sample
from data_pipeline.split import Split
from data_pipeline.task import Task


class ForecastDataModule(pl.LightningDataModule):
    """Loads the training, validation and test years of a `split` by PyTorch's own `DataLoader`.

    Training samples are shuffled. `members` takes the first so many members of each forecast; with `moments` the model
    sees mean and spread of the ensemble instead, which is less to move. `workers` processes read ahead. `deepweather
    train` reads by `data_pipeline.prefetch` instead, which caches samples and goes on in the midst of an epoch.
    """

    def __init__(
        self,
        archive: DataSource,
        task: Task,
        split: Split,
        batch_size: int = 8,
        *,
        members: int | None = None,
        moments: bool = False,
        workers: int = 0,
    ) -> None:
        super().__init__()
        check_integer("batch_size", batch_size, 1)
        check_integer("workers", workers, 0)
        self.archive, self.task, self.split = archive, task, split
        self.batch_size, self.members, self.moments, self.workers = batch_size, members, moments, workers

    @cached_property
    def train(self) -> ForecastDataset:
        """The forecasts of the training years."""
        return self._dataset("train")

    @cached_property
    def val(self) -> ForecastDataset:
        """The forecasts of the validation years."""
        return self._dataset("val")

    @cached_property
    def test(self) -> ForecastDataset:
        """The forecasts of the test years."""
        return self._dataset("test")

    @property
    def grid(self) -> Grid:
        """The grid of ensemble and truth."""
        return self.train.grid

    @property
    def static(self) -> Tensor:
        """The static fields (S, H, W) in physical units."""
        return self.train.static

    @property
    def provenance(self) -> dict[str, Any]:
        """What a corrector that is trained on these data must know: `evaluate` refuses the years that it names."""
        return {
            "train_years": list(self.split.train), "val_years": list(self.split.val), "members": self.train.members,
            "data": self.archive.fingerprint, "deepweather": version("deepweather"),
        }  # fmt: skip

    def train_dataloader(self) -> DataLoader[Sample]:
        """Return the batches of the training years, in a new order each epoch."""
        return self._loader(self.train, shuffle=True)

    def val_dataloader(self) -> DataLoader[Sample]:
        """Return the batches of the validation years."""
        return self._loader(self.val)

    def test_dataloader(self) -> DataLoader[Sample]:
        """Return the batches of the test years."""
        return self._loader(self.test)

    def _dataset(self, years: str) -> ForecastDataset:
        chosen = self.split.years(years)
        return ForecastDataset(self.archive, self.task, chosen, members=self.members, moments=self.moments)

    def _loader(self, dataset: ForecastDataset, shuffle: bool = False) -> DataLoader[Sample]:
        return DataLoader(
            dataset, self.batch_size, shuffle=shuffle, num_workers=self.workers, pin_memory=torch.cuda.is_available()
        )
