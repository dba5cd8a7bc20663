"""Progress of a training: batches of all epochs, validations, resumed runs, and runs that end early."""

import pytest
import pytorch_lightning as pl
import torch
from tested_device import accelerator
from torch.utils.data import DataLoader, TensorDataset

from training.run import training_progress
from training.run.training_progress import TrainingProgress


class Stopping(pl.Callback):
    """Stops the training, or raises an error, after so many batches."""

    def __init__(self, after, error=None):
        self.after, self.error = after, error

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == self.after:
            if self.error:
                raise self.error
            trainer.should_stop = True


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def loader(batches):
    return DataLoader(TensorDataset(torch.zeros(batches, 1)))


@pytest.fixture
def shown(monkeypatch):
    """What each `Progress` showed when it ended, in the order of the ends, and what is entered."""
    ended, entered = [], []

    class Recorded(training_progress.Progress):
        def __enter__(self):
            entered.append(self)
            return super().__enter__()

        def __exit__(self, kind, error, trace):
            entered.remove(self)
            ended.append((self.name, self.total, self.done, self.label, kind))
            super().__exit__(kind, error, trace)

    monkeypatch.setattr(training_progress, "Progress", Recorded)
    yield ended
    assert entered == []


def fit(tmp_path, *callbacks, path=None, **flags):
    trainer = pl.Trainer(
        accelerator=accelerator(), logger=False, enable_checkpointing=False, enable_progress_bar=False,
        default_root_dir=tmp_path, enable_model_summary=False, num_sanity_val_steps=-1,
        callbacks=[TrainingProgress(), *callbacks], **flags,
    )  # fmt: skip
    trainer.fit(Line(), loader(5), loader(2), ckpt_path=path)
    return trainer


def test_batches_of_all_epochs_and_of_each_validation_are_counted(tmp_path, shown):
    fit(tmp_path, max_epochs=3)
    assert shown == [
        ("validation of the initial weights: batch", 2, 2, "", None),
        *[("validation: batch", 2, 2, "", None)] * 3,
        ("training: batch", 15, 15, "epoch 3 of 3", None),
    ]


def test_a_resumed_run_counts_from_its_position(tmp_path, shown, monkeypatch):
    first = fit(tmp_path, Stopping(7), max_epochs=3, min_epochs=0)
    first.save_checkpoint(tmp_path / "last.ckpt")
    shown.clear()
    resumed = []
    monkeypatch.setattr(
        training_progress.Progress, "resume",
        lambda self, done: (resumed.append(done), super(type(self), self).resume(done)),
    )  # fmt: skip
    fit(tmp_path, max_epochs=3, path=str(tmp_path / "last.ckpt"))
    assert resumed == [10], "two epochs of five batches are complete"
    assert shown[-1] == ("training: batch", 15, 15, "epoch 3 of 3", None)


def test_an_error_ends_what_is_shown(tmp_path, shown):
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, Stopping(2, ZeroDivisionError()), max_epochs=3)
    assert shown[-1] == ("training: batch", 15, 2, "epoch 1 of 3", ZeroDivisionError)
