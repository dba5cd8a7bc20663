"""The verb `train`: fit a corrector on the training years, and keep the weights with the lowest validation loss.

All options are written to `run_dir/config.yaml`; their hash is in the corrector's provenance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from conf import build, plain, store_command, verb
from data_pipeline.archive import Archive, regridding_of
from data_pipeline.common.cost_meter import CostMeter
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_write
from data_pipeline.common.memory import keep_freed_memory
from data_pipeline.common.progress import Progress
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import Grid
from data_pipeline.meaning import list_unknown
from data_pipeline.prefetch.budget import Budget, describe_budget
from data_pipeline.protocols import DataSource
from data_pipeline.sample import Sample, select_channels
from data_pipeline.sample_reader import static_fields
from data_pipeline.split import Split
from data_pipeline.store import choose_source
from data_pipeline.task import Task
from models.corrector import Corrector, build_model, check_tiles, needed_task, reads_moments
from models.distribution import Distribution, Ensemble, Normal
from models.layers.channel_axis import check_channel_axis
from models.outline import check_memory, outline
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh, join_mesh
from models.parallel.mesh_shape import AUTO, mesh_shape
from models.training_dates import split_provenance, state_training, valid_days
from training.correction_module import CorrectionModule
from training.datamodule import open_training_data
from training.eecrps import EECRPS, WeightedByIndex
from training.emos_validation import fit_emos_reference
from training.fine_tuning import PretrainedWeights
from training.fitted_state import FITTED_FILE, FittedState
from training.initial_state import fit_corrector, hash_corrector_files, load_initial_weights, warning_of_validation
from training.loss import CRPS, Loss
from training.mesh_choice import first_shape, settle_mesh
from training.network_training import train_network, validation_crps
from training.pruning import pruned_message
from training.run_folder import FolderLock, claim, resumable
from training.run_statistics import RunStatistics
from training.run_summary import RunSummary, mark_finished
from training.teacher import Teacher
from training.trainer_options import TrainerOptions

WORSE = 1.001
"""Ratio of validation scores above which a model is called worse than the raw ensemble; rounding differs by less."""


@verb("train")
def main(cfg: DictConfig) -> None:
    """Train on all ranks of the mesh; an interrupted run can be resumed from its folder."""
    keep_freed_memory()
    options: TrainerOptions = build(cfg.trainer)
    shape = first_shape(options)
    _, bands, sectors, channels = mesh_shape(shape, "trainer.mesh")
    check_tiles(plain(cfg.model), bands * channels, sectors)
    with (
        CostMeter() as meter,
        resumable(Path(cfg.run_dir)),
        join_mesh(shape, "trainer.mesh", options.timeout_minutes) as mesh,
        FolderLock(Path(cfg.run_dir)) as lock,
    ):
        run(cfg, options, mesh, meter, lock)
        trained = mesh.run_on_first((Path(cfg.run_dir) / "corrector.safetensors").exists)  # a pruned run has none
        if cfg.test_check is not None and trained:
            mesh.print(mesh.run_on_first(lambda: run_test_check(cfg)))


def run(cfg: DictConfig, options: TrainerOptions, mesh: Mesh, meter: CostMeter, lock: FolderLock) -> None:
    """Open the data, claim the run folder, train, and save the corrector."""
    archive, loss = build(cfg.data.archive), build(cfg.loss)
    split: Split = build(cfg.data.split)
    split.check_fold()
    if not isinstance(loss, Loss):
        raise InputError(f"loss must be a subclass of training.loss.Loss, got a {type(loss).__name__}")
    spec = plain(cfg.model)
    statistics = RunStatistics(cfg.statistics)
    loss = statistics.complete(loss)
    statistics.check_use(spec, loss, cfg.initial_weights)
    if cfg.initial_weights is not None and cfg["from"] is not None:
        raise InputError("initial_weights continues a run on the same data and from starts one on other data; set one")
    task = needed_task(spec, build(cfg.task))
    if cfg.teacher is None and cfg.teacher_weight is not None:
        raise InputError(
            f"teacher_weight={cfg.teacher_weight} needs a teacher; set teacher, or leave out teacher_weight"
        )
    run_dir = Path(cfg.run_dir)
    dates = {
        name: split.dates(name, task.lead_times) for name in ("train", "val") if name == "train" or split.validates
    }
    sources = {name: choose_source(archive, cfg.data.store, dates[name]) for name in dates}
    # The first rank indexes the files and caches the index before the others open them.
    identity, fingerprint, grid = mesh.run_on_first(
        lambda: claim_folder(
            sources["train"], task, run_dir, statistics.describe(hash_corrector_files(plain(cfg)), loss)
        )
    )
    mesh.run_on_first(lock.take)
    corrector_file, fitted = run_dir / "corrector.safetensors", FittedState(run_dir / FITTED_FILE, identity)
    if mesh.run_on_first(corrector_file.exists):
        Corrector.load(corrector_file)
        mesh.run_on_first(fitted.remove)
        mesh.run_on_first(lambda: mark_finished(run_dir))
        mesh.print(f"{corrector_file} is already trained with these options")
        return

    def was_pruned() -> bool:
        why = mesh.run_on_first(lambda: "" if options.pruning is None else pruned_message(run_dir))
        if why:
            mesh.print(why)
        return bool(why)

    if was_pruned():
        return
    static = static_fields(grid, task, sources["train"].static)
    if (tensors := outline(lambda: Corrector(task, grid, spec, static))) is not None:
        check_memory(spec["_target_"], tensors)
        check_validation(spec["_target_"], tensors, split)
        check_closed_form(spec["_target_"], tensors, loss, cfg.teacher)
    teacher = None if cfg.teacher is None else Teacher(cfg.teacher, task, loss, cfg.teacher_weight)

    moments = reads_moments(spec) and not loss.reads_members and (teacher is None or teacher.moments)
    if options.mesh == AUTO:
        members = 2 if moments else cfg.max_members or 10
        mesh, options = settle_mesh(mesh, options, partial(build_model, spec, task), task, grid, members)

    def corrector_on(domain: Domain) -> Corrector:
        torch.manual_seed(options.seed)
        return Corrector(task, domain, spec, static, provenance, train.meanings)

    def samples_on(domain: Domain, name: str) -> ForecastDataset:
        rows, columns = domain.tile
        return ForecastDataset(
            sources[name], task, dates[name], members=cfg.max_members, rows=rows, columns=columns, moments=moments
        )

    def warn_of_validation(path: str, seen: Mapping[str, Any]) -> None:
        if val and (warning := warning_of_validation(path, seen, valid_days(*val.times()))):
            mesh.print(warning)

    domain = mesh.domain(grid)
    if isinstance(loss, EECRPS):
        loss = loss.load(domain, task, dates["train"], fingerprint)
    train, val = samples_on(domain, "train"), samples_on(domain, "val") if split.validates else None
    used = {"train": train} | ({"val": val} if val else {})
    if isinstance(loss, WeightedByIndex):
        for dataset in used.values():
            loss.check_starts(dataset.starts)
    provenance = {
        **split_provenance(split, task.lead_times), "members": train.members, "run": identity,
        "data": fingerprint, "deepweather": version("deepweather"), "regridding": regridding_of(archive),
        "ledger": {name: samples.ledger.to_json() for name, samples in used.items()},
    }  # fmt: skip
    mesh.print(
        f"{len(train)} forecasts to train on, {len(val) if val else 'none'} to validate; "
        f"{train.members} members on {grid}"
        + (f", in {domain.tiles[0]} x {domain.tiles[1]} tiles" if mesh.tiles > 1 else "")
        + (f", channels of wide layers shared by {mesh.channels}" if mesh.channels > 1 else "")
        + (f", batches shared by {mesh.data}" if mesh.data > 1 else "")
    )
    for name, samples in used.items():
        mesh.print("\n".join(samples.ledger.lines({"train": "training", "val": "validation"}[name])))
    if unknown := list_unknown(train.meanings):
        mesh.print(unknown)
    budget: Budget = build(cfg.data.cache)
    mesh.print(describe_budget(budget))
    with (
        RunSummary(run_dir, meter, mesh) as summary,
        open_training_data(train, val, budget, options, mesh) as data,
    ):
        if isinstance(sources["train"], Archive):
            summary.advice = advise_store(cfg, moments and cfg.max_members is None)
        summary.enter("fit")
        on_tile = partial(samples_on, name="train")
        corrector = corrector_on(domain)
        check_channel_axis(corrector.model, mesh)
        if cfg.initial_weights is not None:
            load_initial_weights(corrector, cfg.initial_weights)
            mesh.print(f"initial weights from {cfg.initial_weights}")
        elif fitted.restore(corrector, mesh):
            mesh.print(f"fitted before, read from {run_dir / FITTED_FILE}")
        else:
            # Before the fit, which may take hours: its checks refuse another task or model.
            pretrained = None if cfg["from"] is None else PretrainedWeights(cfg["from"], task, spec)
            made = statistics.normalization(train, dates["train"], fingerprint, moments)
            if made is not None:
                mesh.print(f"normalisation from {cfg.statistics}")
            fit_corrector(corrector, corrector_on, on_tile, data.train, budget, options.batch_size, mesh, made)
            if pretrained is not None:
                mesh.print("\n".join(pretrained.copy_to(corrector)))
                warn_of_validation(pretrained.path, pretrained.provenance)
            fitted.save(corrector, mesh)
        if teacher is not None:
            teacher.place(domain)
            teacher.state(corrector.provenance)
            mesh.print(teacher.describe())
            warn_of_validation(teacher.path, teacher.provenance)
        summary.enter("start")
        raw = partial(raw_forecast, task=task, moments=moments)
        module = CorrectionModule(corrector, options, loss, mesh, len(data.train_batches), raw, teacher)
        device = torch.device("cpu")
        if needs_validation(corrector):
            check_validation(spec["_target_"], corrector, split)
            device = train_network(module, data, run_dir, summary)
            if was_pruned():
                return
            days = [valid_days(*samples.times()) for samples in used.values()]
            climate = loss.dates if isinstance(loss, WeightedByIndex) else None
            state_training(corrector.provenance, days[0], days[1], climate)
        else:
            check_closed_form(spec["_target_"], corrector, loss, cfg.teacher)
        corrector.eval()
        summary.enter("validate")
        found = None
        if data.val_batches is not None:
            found = validation_crps(module, data.val_batches, device)
            references = summary.references
            if "raw" not in references:
                references["raw"] = validation_crps(module, data.val_batches, device, raw)
            if not needs_validation(corrector):
                summary.validated(0, 0, None, found)
            elif emos := fit_emos_reference(
                sources["train"], task, dates["train"], cfg.max_members, corrector, options, mesh
            ):
                references["emos"] = validation_crps(module, data.val_batches, device, emos.to(device))
            corrector.provenance["validation_crps"] = found
            mesh.print(
                f"validation: crps {found:.4g} in normalised units, raw ensemble {references['raw']:.4g}"
                + (f", emos {references['emos']:.4g}" if "emos" in references else "")
            )
            if found > WORSE * references["raw"]:
                mesh.print(
                    "warning: the model is worse than the raw ensemble on the validation dates; give it more training "
                    "cases, or fewer coefficients"
                )
        summary.enter("save")
        corrector.cpu()
        mesh.run_on_first(lambda: corrector.save(corrector_file))
        mesh.run_on_first(fitted.remove)
        mesh.print(f"wrote {corrector_file}")
        mesh.print(summary.finish(found))


def advise_store(cfg: DictConfig, moments: bool) -> str:
    """Return how to read the samples faster: the command that writes a store of them; "" where it is unknown."""
    folder = f"stores/{cfg.data.name}-{cfg.task.name}"
    found = {"task.lead_times": cfg.task.lead_times} | {f"data.split.{k}": cfg.data.split[k] for k in ("train", "val")}
    settings = {name: value if isinstance(value, str) else plain(value) for name, value in found.items() if value}
    command = store_command(folder, moments, settings)
    return command and (
        f"a store of the samples is faster to read: {command}; then train with store={folder}, in another run_dir"
    )


def raw_forecast(sample: Sample, task: Task, moments: bool) -> Distribution:
    """Return the raw ensemble (B, T, H, W) of a normalised batch, the reference of the validation.

    `moments`: the batch holds two pseudo-members, which stand for a normal distribution.
    """
    members = select_channels(sample.ensemble, task.target_channels, 2).movedim(1, 0)
    return Normal(members.mean(0), members.std(0).clamp(min=1e-6)) if moments else Ensemble(members)


def needs_validation(corrector: nn.Module) -> bool:
    """Whether a model is trained in epochs, the best of which is found by validation."""
    return any(parameter.requires_grad for parameter in corrector.parameters())


def check_validation(name: str, corrector: nn.Module, split: Split) -> None:
    """Raise an `InputError` for a model that is trained in epochs, if there are no validation dates."""
    if needs_validation(corrector) and not split.validates:
        raise InputError(
            f"model {name} keeps the weights of the epoch with the lowest validation loss, and there are no validation "
            "dates; give them as data.split.val=[first, last], or data.split.val=next_fold with data.split.folds"
        )


def check_closed_form(name: str, corrector: nn.Module, loss: Loss, teacher: str | None) -> None:
    """Raise an `InputError` for a model that is fitted in closed form, if the run has a loss or a teacher for it."""
    if not needs_validation(corrector) and (loss != CRPS() or teacher is not None):
        what = "teacher" if loss == CRPS() else "loss"
        raise InputError(f"model {name} is fitted in closed form, with its own score; leave out {what}")


def run_test_check(cfg: DictConfig) -> str:
    """Run the experiment's check on the test years; return its results, which are kept in `test_check.json`."""
    file = Path(cfg.run_dir) / "test_check.json"
    if not file.exists():
        corrector = Corrector.load(file.with_name("corrector.safetensors"))
        archive, dates = build(cfg.data.archive), build(cfg.data.split).dates("test", corrector.task.lead_times)
        with Progress("test check"):
            result = build(cfg.test_check)(
                corrector, archive, ForecastDataset(archive, corrector.task, dates, members=cfg.max_members)
            )
        with atomic_write(file, "w") as stream:
            json.dump(result, stream, indent=2)
    return f"test check: {json.loads(file.read_text())}"


def claim_folder(source: DataSource, task: Task, run_dir: Path, options: dict[str, Any]) -> tuple[str, str, Grid]:
    """Claim the run folder; return the run's identity, the data's fingerprint and the grid."""
    with Progress("opening the data"):
        fingerprint = source.fingerprint
        identity = claim(run_dir, options, fingerprint)
        return identity, fingerprint, source.ensemble_fields(task.inputs, task.lead_times).grid


if __name__ == "__main__":
    main()
