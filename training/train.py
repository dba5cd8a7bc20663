"""The verb `train`: fit a corrector on the training years, and keep the weights with the lowest validation loss.

All options are written to `run_dir/config.yaml`; their hash is in the corrector's provenance.
"""

from __future__ import annotations

import json
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from conf import build, plain, verb
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_write
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import Grid
from data_pipeline.prefetch.budget import Budget
from data_pipeline.protocols import DataSource
from data_pipeline.sample_reader import static_fields
from data_pipeline.store import choose_source
from data_pipeline.task import Task
from models.corrector import Corrector, check_tiles, needed_task, reads_moments
from models.outline import check_memory, outline
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh, join_mesh, mesh_shape
from training.correction_module import CorrectionModule
from training.datamodule import open_training_data
from training.eecrps import EECRPS, WeightedByIndex
from training.initial_state import fit_corrector, hash_initial_weights, load_initial_weights
from training.loss import CRPS, Loss
from training.network_training import train_network, validation_crps
from training.run_folder import claim, resumable
from training.trainer_options import TrainerOptions


@verb("train")
def main(cfg: DictConfig) -> None:
    """Train on all ranks of the mesh; an interrupted run can be resumed from its folder."""
    options: TrainerOptions = build(cfg.trainer)
    _, bands, sectors = mesh_shape(options.mesh, "trainer.mesh")
    check_tiles(plain(cfg.model), bands, sectors)
    with (
        resumable(Path(cfg.run_dir)),
        join_mesh(options.mesh, "trainer.mesh", options.timeout_minutes) as mesh,
    ):
        run(cfg, options, mesh)
        if cfg.test_check is not None:
            mesh.print(mesh.run_on_first(lambda: run_test_check(cfg)))


def run(cfg: DictConfig, options: TrainerOptions, mesh: Mesh) -> None:
    """Open the data, claim the run folder, train, and save the corrector."""
    archive, split, loss = build(cfg.data.archive), build(cfg.data.split), build(cfg.loss)
    if not isinstance(loss, Loss):
        raise InputError(f"loss must be a subclass of training.loss.Loss, got a {type(loss).__name__}")
    spec = plain(cfg.model)
    task = needed_task(spec, build(cfg.task))
    run_dir = Path(cfg.run_dir)
    sources = {name: choose_source(archive, cfg.data.store, split.years(name)) for name in ("train", "val")}
    # The first rank indexes the files and caches the index before the others open them.
    identity, fingerprint, grid = mesh.run_on_first(
        lambda: claim_folder(sources["train"], task, run_dir, hash_initial_weights(plain(cfg)))
    )
    corrector_file = run_dir / "corrector.safetensors"
    if mesh.run_on_first(corrector_file.exists):
        Corrector.load(corrector_file)
        mesh.print(f"{corrector_file} is already trained with these options")
        return
    static = static_fields(grid, task, sources["train"].static)
    if (tensors := outline(lambda: Corrector(task, grid, spec, static))) is not None:
        check_memory(spec["_target_"], tensors)

    def corrector_on(domain: Domain) -> Corrector:
        torch.manual_seed(options.seed)
        return Corrector(task, domain, spec, static, provenance)

    def samples_on(domain: Domain, years: str) -> ForecastDataset:
        rows, columns = domain.tile
        moments = reads_moments(spec) and not loss.reads_members
        span = split.years(years)
        return ForecastDataset(
            sources[years], task, span, members=cfg.max_members, rows=rows, columns=columns, moments=moments
        )

    domain = mesh.domain(grid)
    if isinstance(loss, EECRPS):
        loss = loss.load(domain, task, split.train, fingerprint)
    train, val = (samples_on(domain, years) for years in sources)
    if isinstance(loss, WeightedByIndex):
        for dataset in (train, val):
            loss.check_starts(dataset.starts)
    provenance = {
        "train_years": list(split.train), "val_years": list(split.val), "members": train.members, "run": identity,
        "data": fingerprint, "deepweather": version("deepweather"),
    }  # fmt: skip
    mesh.print(
        f"{len(train)} forecasts to train on, {len(val)} to validate; {train.members} members on {grid}"
        + (f", in {domain.tiles[0]} x {domain.tiles[1]} tiles" if mesh.tiles > 1 else "")
        + (f", batches shared by {mesh.data}" if mesh.data > 1 else "")
    )
    for name, samples in (("training", train), ("validation", val)):
        if samples.skipped_message:
            mesh.print(f"{name}: {samples.skipped_message}")
    budget: Budget = build(cfg.data.cache)
    with open_training_data(train, val, budget, options, mesh) as data:
        on_tile = partial(samples_on, years="train")
        if cfg.initial_weights is None:
            corrector = fit_corrector(domain, corrector_on, on_tile, data.train, budget, options.batch_size, mesh)
        else:
            corrector = load_initial_weights(corrector_on(domain), cfg.initial_weights)
            mesh.print(f"initial weights from {cfg.initial_weights}")
        module = CorrectionModule(corrector, options, loss, mesh, len(data.train_batches))
        device = torch.device("cpu")
        if any(parameter.requires_grad for parameter in corrector.model.parameters()):
            device = train_network(module, data, run_dir)
        elif loss != CRPS():
            raise InputError(f"model {spec['_target_']} is fitted in closed form, with its own score; leave out loss")
        corrector.eval()
        corrector.provenance["validation_crps"] = validation_crps(module, data.val_batches, device)
        mesh.print(f"validation: crps {corrector.provenance['validation_crps']:.4g} in normalised units")
    corrector.cpu()
    mesh.run_on_first(lambda: corrector.save(corrector_file))
    mesh.print(f"wrote {corrector_file}")


def run_test_check(cfg: DictConfig) -> str:
    """Run the experiment's check on the test years; return its results, which are kept in `test_check.json`."""
    file = Path(cfg.run_dir) / "test_check.json"
    if not file.exists():
        corrector = Corrector.load(file.with_name("corrector.safetensors"))
        archive, years = build(cfg.data.archive), build(cfg.data.split).years("test")
        result = build(cfg.test_check)(
            corrector, archive, ForecastDataset(archive, corrector.task, years, members=cfg.max_members)
        )
        with atomic_write(file, "w") as stream:
            json.dump(result, stream, indent=2)
    return f"test check: {json.loads(file.read_text())}"


def claim_folder(source: DataSource, task: Task, run_dir: Path, options: dict[str, Any]) -> tuple[str, str, Grid]:
    """Claim the run folder; return the run's identity, the data's fingerprint and the grid."""
    fingerprint = source.fingerprint
    identity = claim(run_dir, options, fingerprint)
    return identity, fingerprint, source.ensemble_fields(task.inputs, task.lead_times).grid


if __name__ == "__main__":
    main()
