"""Training data: `open_training_data` for the verb `train`, `ForecastDataModule` for any Lightning `Trainer`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from data_pipeline.archive import regridding_of
from data_pipeline.common.checks import check_integer
from data_pipeline.common.threads import BUDGET, processors_of_rank
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import Grid
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.prefetch.order import SampleOrder
from data_pipeline.prefetch.socket_peers import SocketPeers
from data_pipeline.prefetch.tiers import Samples, Tiers, run_key
from data_pipeline.protocols import DataSource
from data_pipeline.sample import Sample
from data_pipeline.split import Split
from data_pipeline.task import Task
from models.parallel.interface import own_address
from models.parallel.mesh import Mesh
from models.provenance.training_dates import split_provenance, state_training, valid_days
from training.run.trainer_options import TrainerOptions


class TrainingData(NamedTuple):
    """Training samples, and the training and validation batches of this rank, which are read ahead."""

    train: Tiers
    train_batches: Prefetcher
    val_batches: Prefetcher | None
    """None without validation."""


@contextmanager
def open_training_data(
    train: Samples, val: Samples | None, budget: Budget, options: TrainerOptions, mesh: Mesh
) -> Iterator[TrainingData]:
    """Open both data sets behind the caches of `budget`. Threads and folders are released at the end of the block."""
    size, rank = options.batch_size, mesh.data_rank
    shuffled = SampleOrder(len(train), size, options.epochs, options.seed, mesh.data)
    train_budget, *val_budget = budget.divide([len(samples) * samples.nbytes for samples in filter(None, (train, val))])
    names = [f"{name}-{mesh.spatial_rank}" if mesh.tiles > 1 else name for name in ("train", "val")]
    cached = train_budget.memory_bytes or train_budget.disk_bytes
    peers = _peers(mesh, run_key(train, shuffled)) if cached else None
    with ExitStack() as stack:
        train_tiers = stack.enter_context(Tiers(train, train_budget, shuffled, rank=rank, peers=peers, name=names[0]))
        val_batches = None
        if val is not None:
            in_turn = SampleOrder(len(val), size, ranks=mesh.data, shuffle=False)
            # Each rank reads the same validation samples in every epoch, so other ranks' caches would not help.
            val_tiers = stack.enter_context(Tiers(val, val_budget[0], in_turn, rank=rank, name=names[1]))
            val_batches = stack.enter_context(Prefetcher(val_tiers, in_turn, rank))
        train_batches = stack.enter_context(Prefetcher(train_tiers, shuffled, rank))
        yield TrainingData(train_tiers, train_batches, val_batches)


def _peers(mesh: Mesh, key: str) -> SocketPeers | None:
    """Return the ranks with the same tile and other samples, whose caches this rank can read; None without any."""
    if mesh.data == 1 or mesh.store is None:
        return None
    one_machine = mesh.local_ranks == mesh.ranks
    host = "127.0.0.1" if one_machine else own_address(os.environ.get("MASTER_ADDR", "127.0.0.1"))
    return SocketPeers.from_store(mesh.data_rank, mesh.data, mesh.store, key, host)


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
            "data": self.archive.fingerprint, "deepweather": version("deepweather"),
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
        return ForecastDataset(self.archive, self.task, dates, members=self.members, moments=self.moments)

    def _loader(self, dataset: ForecastDataset, shuffle: bool = False) -> DataLoader[Sample]:
        return DataLoader(
            dataset, self.batch_size, shuffle=shuffle, num_workers=self.workers, pin_memory=torch.cuda.is_available(),
            worker_init_fn=partial(_share_threads, self.workers),
        )  # fmt: skip


def _share_threads(workers: int, _: int) -> None:
    """Give each worker process its share of this machine's threads."""
    BUDGET.limit(max(1, processors_of_rank() // workers))
