"""A small network and toy data for training, the same on any mesh."""

from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import torch
from specs import QUICK
from tested_device import accelerator
from torch.utils.data import Dataset

from data_pipeline.grid import Grid
from data_pipeline.prefetch.budget import Budget
from data_pipeline.task import Task
from models.corrector import Corrector, needed_task
from training.network_training import train_network
from training.run.trainer_options import TrainerOptions
from training.step.batch_loss import validation_crps
from training.step.correction_module import CorrectionModule
from training.step.training_data import open_training_data

NET = {"_target_": "models.networks.unet.UNet", "width": 4, "depth": 1, "dropout": 0.2}
SPECS = QUICK | {"routed": NET | {"mixture": {"routing_quantile": 0.3}}}
TASK = Task("toy", ["2t", "msl"], ["2t"], [48])
GRID = Grid.regular(13, 20)


class Tile(Dataset):
    """This rank's tile of toy samples; every third sample lacks truth in some cells, mostly in the south."""

    def __init__(self, toy, domain, count, dtype, seed=0, task=TASK):
        self.data, self.domain, self.dtype = toy(task, GRID, count, seed=seed), domain, dtype
        self.static = domain.cut(self.data.static).to(dtype).contiguous()
        self.fingerprint = f"{self.data.fingerprint} {domain.tile}"
        self.reads = 0

    @property
    def nbytes(self):
        sample = self[0]
        return sum(tensor.nbytes for tensor in sample) - sample.static.nbytes

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        self.reads += 1
        sample = self.data[index]
        truth = sample.target.clone()
        if index % 3 == 0:
            truth[:, 1::2, : 3 + index] = torch.nan
            truth[:, 9:] = torch.nan
        cut = self.domain.cut
        return sample._replace(
            ensemble=cut(sample.ensemble).to(self.dtype).contiguous(),
            mask=cut(sample.mask).contiguous(),
            static=self.static,
            target=cut(truth).to(self.dtype).contiguous(),
        )


def module(toy, mesh, dtype, spec=NET, count=17, val=10, of=TASK, **options):
    """A module before training, and its two data sets; the same on every mesh."""
    domain, task = mesh.domain(GRID), needed_task(spec, of)
    train, val = (Tile(toy, domain, n, dtype, seed, of) for n, seed in ((count, 0), (val, 5)))
    torch.manual_seed(0)
    fitted = Corrector(task, GRID, spec, train.data.static)
    fitted.fit(toy(task, GRID, 8))
    corrector = Corrector(task, domain, spec, train.data.static)
    # Not fitted on tiles, because fits are rounded to single precision.
    corrector.load_state_dict(fitted.state_dict())
    torch.manual_seed(3)
    for parameter in corrector.model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    schedule = TrainerOptions(
        batch_size=8, learning_rate=1e-2, matmul_precision="highest", accelerator=accelerator(mesh.ranks), **options
    )
    return CorrectionModule(corrector, schedule, mesh=mesh, batches=-(-count // 8)).to(dtype), train, val


def first_step(net, train, val):
    """What a training step returns on the first batch, with the same masks of dropout on every mesh."""
    with open_training_data(train, val, Budget(), net.options, net.mesh) as data:
        torch.manual_seed(1)
        return net.training_step(next(iter(data.train_batches)), 0)


class KilledError(Exception):
    """Simulates a killed process."""


@contextmanager
def killed_at(step):
    """Raise KilledError before a step of the runs in this block, and expect it; None kills no run."""
    original = CorrectionModule.on_train_batch_start

    def start(self, batch, batch_idx):
        if self.global_step == step:
            raise KilledError
        original(self, batch, batch_idx)

    with patch.object(CorrectionModule, "on_train_batch_start", start):
        if step is None:
            yield
        else:
            with pytest.raises(KilledError):
                yield


def train_run(mesh, toy, folder, dtype=torch.float64, budget=None, **options):
    """Train like the verb; return the table of epochs, the weights, the score, and the number of samples read."""
    net, train, val = module(toy, mesh, dtype, **options)
    train.reads = 0
    with open_training_data(train, val, budget or Budget(), net.options, mesh) as data:
        train_network(net, data, folder)
        score = validation_crps(net.eval(), data.val_batches)[0]
    rows = [[float(x) for x in line.split(",")] for line in (folder / "metrics.csv").read_text().splitlines()[1:]]
    return rows, {name: tensor.numpy() for name, tensor in net.state_dict().items()}, score, train.reads


def assert_same_run(found, expected, tolerance=1e-10):
    """Compare losses, weights and scores of two results of `train_run`."""
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert ours == pytest.approx(theirs, rel=tolerance)
    assert found[2] == pytest.approx(expected[2], rel=tolerance)
    for name, weights in expected[1].items():
        assert np.abs(found[1][name] - weights).max() <= tolerance * np.abs(weights).max(), name
