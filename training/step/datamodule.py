"""The data of a training for any Lightning `Trainer`; the verb `train` uses `training.step.training_data`."""

from __future__ import annotations

from functools import cached_property, partial
from importlib.metadata import version
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from data_pipeline.archive import regridding_of
from data_pipeline.common.checks import check_integer
from data_pipeline.common.threads import BUDGET, processors_of_rank
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import Grid
from data_pipeline.protocols import DataSource
from data_pipeline.sample import Sample
from data_pipeline.split import Split
from data_pipeline.task import Task
from models.provenance.groups import stated_groups
from models.provenance.training_dates import split_provenance, state_training, valid_days


class ForecastDataModule(pl.LightningDataModule):
    """The forecasts of an archive in batches of PyTorch's `DataLoader`, by the dates of a `split`.

    Training samples are shuffled. `members` limits each forecast to its first members. With `moments` a sample holds
    the ensemble's mean and spread instead of the members, which is less data to move. `workers` processes read ahead.
    The verb `train` reads through `data_pipeline.prefetch` instead, which caches samples and resumes inside an epoch.
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
        """The forecasts of the training dates."""
        return self._dataset("train")

    @cached_property
    def val(self) -> ForecastDataset:
        """The forecasts of the validation dates."""
        return self._dataset("val")

    @cached_property
    def test(self) -> ForecastDataset:
        """The forecasts of the test dates."""
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
        """The provenance of a corrector trained on these data: `evaluate` refuses to score it on these dates."""
        found = {
            **split_provenance(self.split, self.task.lead_times), "members": self.train.members,
            **stated_groups(self.train), "data": self.archive.fingerprint, "deepweather": version("deepweather"),
            "regridding": regridding_of(self.archive),
            "ledger": {"train": self.train.ledger.to_json()}
            | ({"val": self.val.ledger.to_json()} if self.split.validates else {}),
        }  # fmt: skip
        val = valid_days(*self.val.times()) if self.split.validates else None
        state_training(found, valid_days(*self.train.times()), val)
        return found

    def train_dataloader(self) -> DataLoader[Sample]:
        """Return the batches of the training dates, in a new order each epoch."""
        return self._loader(self.train, shuffle=True)

    def val_dataloader(self) -> DataLoader[Sample]:
        """Return the batches of the validation dates."""
        return self._loader(self.val)

    def test_dataloader(self) -> DataLoader[Sample]:
        """Return the batches of the test dates."""
        return self._loader(self.test)

    def _dataset(self, name: str) -> ForecastDataset:
        dates = self.split.dates(name, self.task.lead_times)
        return ForecastDataset(
            self.archive, self.task, dates, members=self.members, moments=self.moments
        ).with_all_groups()

    def _loader(self, dataset: ForecastDataset, shuffle: bool = False) -> DataLoader[Sample]:
        return DataLoader(
            dataset, self.batch_size, shuffle=shuffle, num_workers=self.workers, pin_memory=torch.cuda.is_available(),
            worker_init_fn=partial(_share_threads, self.workers),
        )  # fmt: skip


def _share_threads(workers: int, _: int) -> None:
    """Give each worker process its share of this machine's threads."""
    BUDGET.limit(max(1, processors_of_rank() // workers))
