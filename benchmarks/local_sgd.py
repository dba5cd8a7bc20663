"""Loss of skill by local steps (`trainer.local_steps`), and the messages that they save, on the twin experiment.

A U-Net corrects 2 m temperature at 48 h on data ranks of one thread each. Skill is 1 - CRPS / CRPS of the raw ensemble
on the validation years 2014 and 2015, with the best weights of each run. The first row of the table is synchronous
training: a message with all gradients in every step. Each other row has local steps after a fraction of the run.
Messages and bytes count everything that ranks send in a run, as a share of the first row. Prepare the data first:

    deepweather prepare data=twin
    python -m benchmarks.local_sgd [--json] [--path data/twin] [--ranks 4] [--epochs 20] [--seeds 2]
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.common import command_line, report
from benchmarks.mesh.ranks import run_ranks
from data_pipeline.archive import Archive
from data_pipeline.dataset import ForecastDataset
from data_pipeline.prefetch.budget import Budget
from data_pipeline.task import Task
from models.corrector import Corrector
from models.distribution import Normal
from models.parallel.mesh import arrange_mesh
from training.network_training import train_network
from training.run.trainer_options import TrainerOptions
from training.step.batch_loss import validation_crps
from training.step.correction_module import CorrectionModule
from training.step.training_data import open_training_data

SYNCHRONOUS = 1 - 1e-9
"""A fraction of the run after which no local step remains."""
SCHEDULES = ((2, SYNCHRONOUS), (2, 0.5), (4, 0.5), (16, 0.5), (16, 0.0))
"""Interval of averages, and the fraction of the run before the first local step."""
SPEC = {"_target_": "models.networks.unet.UNet", "width": 8, "depth": 2, "dropout": 0.1}


def count_messages(counts: list[float]) -> Any:
    """Return a context that counts messages to all ranks of more than one value, and their bytes, into `counts`."""
    original = dist.all_reduce

    def count(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        counts[0] += 1
        counts[1] += tensor.numel() * tensor.element_size()
        return original(tensor, *arguments, **options)

    return patch.object(dist, "all_reduce", count)


def train(rank: int, ranks: int, path: str, epochs: int, seed: int) -> list[tuple[float, float, float]]:
    """Train with every schedule; return skill, messages and bytes of each."""
    mesh, task = arrange_mesh(ranks, 1), Task("t2m", ["2t", "msl", "t@850", "z@500"], ["2t"], [48])
    archive = Archive(ensemble=[f"{path}/output.*"], analysis=[f"{path}/analysis.*"], static_fields=[f"{path}/static"])
    data = {
        name: ForecastDataset(archive, task, years, moments=True)
        for name, years in (("train", range(1998, 2014)), ("val", range(2014, 2016)))
    }
    fitted = Corrector(task, data["train"].grid, SPEC, data["train"].static)
    fitted.fit(data["train"])
    found = []
    for interval, fraction in SCHEDULES:
        torch.manual_seed(seed)
        corrector = Corrector(task, data["train"].grid, SPEC, data["train"].static)
        trained = {name for name, _ in corrector.named_parameters()}
        state = {name: value for name, value in fitted.state_dict().items() if name not in trained}
        corrector.load_state_dict(corrector.state_dict() | state)
        options = TrainerOptions(
            epochs=epochs, patience=epochs, seed=seed, learning_rate=4e-3, accelerator="cpu", loggers=[],
            mesh=[ranks, 1], local_steps=interval, synchronous_fraction=fraction,
        )  # fmt: skip
        counts = [0.0, 0.0]
        with (
            open_training_data(
                data["train"], data["val"], Budget(memory_bytes=2_000_000_000), options, mesh
            ) as batches,
            tempfile.TemporaryDirectory() as folder,
        ):
            assert batches.val_batches is not None
            module = CorrectionModule(corrector, options, None, mesh, len(batches.train_batches))
            run_dir = mesh.broadcast(Path(folder))
            with count_messages(counts):
                train_network(module, batches, run_dir)
            module.eval()
            crps = validation_crps(module, batches.val_batches)[0]
            raw, _ = validation_crps(
                module, batches.val_batches, model=partial(raw_normal, channel=task.target_channels[0])
            )
            dist.barrier()
        found.append((1 - crps / raw, *counts))
    return found


def raw_normal(sample: Any, channel: int) -> Normal:
    """Return the normal distribution of the raw ensemble (B, 1, H, W) from two pseudo-members."""
    members = sample.ensemble[:, :, [channel]].movedim(1, 0)
    return Normal(members.mean(0), members.std(0).clamp(min=1e-6))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with each schedule and seed, and print the table."""
    parser = command_line(__doc__, ranks=4, epochs=20, seeds=2)
    parser.add_argument("--path", default="data/twin", help="folder of the twin experiment")
    options = parser.parse_args(arguments)
    runs = np.array(
        [
            run_ranks(options.ranks, train, options.ranks, options.path, options.epochs, seed, group=True)[0]
            for seed in range(options.seeds)
        ]
    )
    print(f"{'interval':>8} {'after':>6} {'messages':>9} {'bytes':>7} {'skill':>7} {'loss of skill':>14}   each seed")
    ratios = {}
    for row, (interval, fraction) in enumerate(SCHEDULES):
        skills, baseline = runs[:, row, 0], runs[:, 0, 0]
        messages, sent = runs[:, row, 1:].mean(0) / runs[:, 0, 1:].mean(0)
        name = "synchronous" if fraction == SYNCHRONOUS else f"{interval} after {fraction}"
        label = ("-", "-") if fraction == SYNCHRONOUS else (interval, fraction)
        print(
            f"{label[0]:>8} {label[1]:>6} {messages:9.1%} {sent:7.1%} {skills.mean():7.4f} "
            f"{(baseline - skills).mean():14.4f}   {' '.join(f'{skill:.4f}' for skill in skills)}"
        )
        ratios |= {f"skill {name}": skills.mean() / baseline.mean(), f"messages {name}": messages}
    report("local_sgd", ratios, options.json)


if __name__ == "__main__":
    main()
