"""The verb `train`: fit a corrector on the training years, keep what the validation years like best.

Every path and every number that a result depends on is in `run_dir/config.yaml` and in the corrector's provenance.
"""

from __future__ import annotations

import logging
import warnings
from importlib.metadata import version
from pathlib import Path

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from conf import build, plain, verb
from data_pipeline.dataset import ForecastDataset, batches
from data_pipeline.errors import InputError, InterruptedRunError
from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.store import source_for
from models.corrector import Corrector, needs, reads_moments
from training.checkpoints import Checkpoints
from training.data import Data, cached
from training.history import History
from training.module import CorrectionModule, weighted_crps
from training.resume import claim, resumable
from training.schedule import Schedule


@verb("train")
def main(cfg: DictConfig) -> None:
    """Open the data, claim the run folder, fit, save."""
    archive, split, schedule = build(cfg.data.archive), build(cfg.data.split), build(cfg.trainer)
    spec = plain(cfg.model)
    task = needs(spec, build(cfg.task))
    run_dir = Path(cfg.run_dir)
    with resumable(run_dir):
        sources = {name: source_for(archive, cfg.data.store, split.years(name)) for name in ("train", "val")}
        fingerprint = sources["train"].fingerprint
        identity = claim(run_dir, plain(cfg), fingerprint)
        corrector_file = run_dir / "corrector.safetensors"
        if corrector_file.exists():
            Corrector.load(corrector_file)
            print(f"{corrector_file} is already trained with these options")
            return
        moments = reads_moments(spec)
        train, val = (
            ForecastDataset(source, task, split.years(name), moments=moments) for name, source in sources.items()
        )
        print(f"{len(train)} forecasts to train on, {len(val)} to validate; {train.members} members on {train.grid}")
        provenance = {
            "train_years": list(split.train), "val_years": list(split.val), "run": identity,
            "data": fingerprint, "deepweather": version("deepweather"),
        }  # fmt: skip
        torch.manual_seed(schedule.seed)
        corrector = Corrector(task, train.grid, spec, train.static, provenance)
        with cached(train, val, build(cfg.data.cache), schedule) as data:
            corrector.fit(data.train, schedule.batch_size)
            module = CorrectionModule(corrector, schedule, len(data.train_batches))
            if any(parameter.requires_grad for parameter in corrector.model.parameters()):
                descend(module, data, run_dir)
            corrector.eval()
            print(f"validation: crps {score(module, data.val):.4f} of the targets' typical departure")
        corrector.save(corrector_file)
        print(f"wrote {corrector_file}")


def descend(module: CorrectionModule, data: Data, run_dir: Path) -> None:
    """Train by gradient descent and leave the best weights in `module`; goes on from the last checkpoint."""
    schedule: Schedule = module.schedule
    for noisy in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.accelerators.cuda"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    warnings.filterwarnings(
        "ignore", message=".*does not have many workers.*|.*Checkpoint directory.*|.*log_every_n.*|.*LeafSpec.*"
    )
    checkpoints = Checkpoints(run_dir / "checkpoints", schedule.checkpoint_minutes)
    stopping = EarlyStopping("val_crps", patience=schedule.patience)
    try:
        trainer = pl.Trainer(
            max_epochs=schedule.epochs, accelerator=schedule.accelerator, devices=1,
            precision=schedule.precision, gradient_clip_val=schedule.gradient_clip,
            callbacks=[checkpoints, stopping, History(run_dir / "metrics.csv")],
            logger=TensorBoardLogger(run_dir, name="tensorboard", version=""),
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=-1, log_every_n_steps=1,
        )  # fmt: skip
    except MisconfigurationException as error:
        asked = f"trainer.accelerator={schedule.accelerator} with precision={schedule.precision}"
        raise InputError(f"{asked} cannot be had here: {error}") from None
    resumed = checkpoints.last.exists()
    if resumed:
        print(f"going on from {checkpoints.last}", flush=True)
    try:
        with checkpoints.stopping_gently():
            trainer.fit(
                module,
                data.train_batches,
                data.val_batches,
                ckpt_path=str(checkpoints.last) if resumed else None,
                weights_only=True,
            )
    except SystemExit:
        # So Lightning ends after it has caught an interrupt.
        if not trainer.interrupted:
            raise
        raise InterruptedRunError(
            f"interrupted in epoch {trainer.current_epoch + 1}; run the same command again to go on from there"
        ) from None
    best = torch.load(checkpoints.best, weights_only=True, map_location="cpu")
    module.load_state_dict(best["state_dict"])


@torch.no_grad()
def score(module: CorrectionModule, dataset: Tiers) -> float:
    """Return the area-weighted CRPS in normalised units over a whole dataset."""
    total, corrector = 0.0, module.corrector.cpu()
    for batch in batches(dataset, module.schedule.batch_size):
        sample = corrector.normalizer(batch)
        total += float(weighted_crps(corrector.model(sample), sample.target, module.area.cpu())) * len(batch.target)
    return total / len(dataset)


if __name__ == "__main__":
    main()
