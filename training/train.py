"""The verb `train`: fit a corrector on the training years, and keep the weights with the lowest validation loss.

All options are written to `run_dir/config.yaml`; their hash is in the corrector's provenance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from conf import build, plain, store_command, verb
from data_pipeline.archive import Archive, regridding_of
from data_pipeline.common.cost_meter import CostMeter
from data_pipeline.common.errors import InputError
from data_pipeline.common.fetching import local_file
from data_pipeline.common.files import write_text
from data_pipeline.common.machine_memory import keep_freed_memory
from data_pipeline.common.messages import say
from data_pipeline.common.progress import Progress
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.protocols import DataSource
from data_pipeline.split import Split
from data_pipeline.store import choose_source
from models.corrector import Corrector, check_tiles, needed_task
from models.device import choose_device
from models.laws import with_laws
from models.parallel.mesh import Mesh, join_mesh
from models.parallel.mesh_shape import mesh_shape
from models.parallel.single_process import SingleProcess
from training.auto import is_auto, train_auto
from training.initial_state import CORRECTOR_FILES, hash_corrector_files
from training.noise_fit import add_noise, check_noise
from training.optimization.loss import Loss
from training.run.run_folder import FolderLock, claim, resumable
from training.run.run_statistics import RunStatistics
from training.run.run_summary import mark_finished
from training.run.trainer_options import TrainerOptions
from training.step.mesh_choice import first_shape
from training.training_run import Run, TrainingPlan, train_corrector


def trainer_of(cfg: DictConfig) -> tuple[TrainerOptions, Sequence[int]]:
    """Check the options as far as no data are needed; return those of the trainer, and the first shape of the mesh."""
    options: TrainerOptions = build(cfg.trainer)
    shape = first_shape(options)
    _, bands, sectors, channels = mesh_shape(shape, "trainer.mesh")
    check_tiles(plain(cfg.model), bands * channels, sectors)
    make_plan(cfg, options, lambda archive, store, dates: archive)
    return options, shape


@verb("train", trainer_of)
def main(cfg: DictConfig) -> None:
    """Train on all ranks of the mesh; an interrupted run can be resumed from its folder."""
    keep_freed_memory()
    options, shape = trainer_of(cfg)
    with (
        CostMeter() as meter,
        resumable(Path(cfg.run_dir)),
        join_mesh(shape, "trainer.mesh", options.timeout_minutes) as mesh,
        FolderLock(Path(cfg.run_dir)) as lock,
    ):
        run(cfg, options, mesh, meter, lock)
        trained = mesh.run_on_first((Path(cfg.run_dir) / "corrector.safetensors").exists)  # a pruned run has none
        if cfg.noise and trained:
            say(mesh.run_on_first(lambda: run_noise(cfg, options)))
        if cfg.test_check is not None and trained:
            say(mesh.run_on_first(lambda: run_test_check(cfg)))


def run(cfg: DictConfig, options: TrainerOptions, mesh: Mesh, meter: CostMeter, lock: FolderLock) -> None:
    """Open the data, claim the run folder, train, and save the corrector."""
    plan, run_dir = make_plan(cfg, options), Path(cfg.run_dir)
    # The first rank indexes the files and caches the index before the others open them.
    # Options that follow from the targets are part of a run's identity; a finished run may get noise.
    given = plain(cfg) | {"model": plan.spec}
    del given["noise"]
    given = hash_corrector_files(given)
    claimed = mesh.run_on_first(lambda: claim_folder(plan, run_dir, plan.statistics.describe(given, plan.loss)))
    mesh.run_on_first(lock.take)
    corrector_file = run_dir / "corrector.safetensors"
    if mesh.run_on_first(corrector_file.exists):
        Corrector.load(corrector_file)
        mesh.run_on_first(claimed.fitted.remove)
        mesh.run_on_first(lambda: mark_finished(run_dir))
        say(f"{corrector_file} is already trained with these options")
        return

    def keep(corrector: Corrector) -> None:
        mesh.run_on_first(lambda: corrector.save(corrector_file))
        mesh.run_on_first(claimed.fitted.remove)
        say(f"wrote {corrector_file}")

    reads_files = isinstance(plan.sources["train"], Archive)
    train = train_auto if is_auto(plan) else train_corrector
    train(plan, claimed, mesh, meter, keep, partial(advise_store, cfg) if reads_files else lambda moments: "")


def make_plan(
    cfg: DictConfig,
    options: TrainerOptions,
    choose: Callable[[Archive, str | None, Dates], DataSource] = choose_source,
) -> TrainingPlan:
    """Return the training plan that the options describe. Raises `InputError` for options that exclude each other.

    `choose(archive, store, dates)` returns the source of some dates.
    """
    archive, loss = build(cfg.data.archive), build(cfg.loss)
    split: Split = build(cfg.data.split)
    split.check_fold()
    check_noise(cfg.noise, split)
    if not isinstance(loss, Loss):
        raise InputError(f"loss must be a subclass of training.optimization.loss.Loss, got a {type(loss).__name__}")
    spec = with_laws(plain(cfg.model), build(cfg.task))
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
    names = [name for name in ("train", "val") if name == "train" or split.validates]
    first, pretrained, teacher = (cfg[name] and str(local_file(cfg[name])) for name in CORRECTOR_FILES)
    return TrainingPlan(
        spec, task,
        {name: choose(archive, cfg.data.store, split.dates(name, task.lead_times)) for name in names},
        split, loss, options, build(cfg.data.cache), cfg.max_members, statistics, first, pretrained, teacher,
        cfg.teacher_weight, regridding_of(archive),
    )  # fmt: skip


def advise_store(cfg: DictConfig, moments: bool) -> str:
    """Return how to read the samples faster: the command that writes a store of them; "" where it is unknown."""
    folder = f"stores/{cfg.data.name}-{cfg.task.name}"
    found = {"task.lead_times": cfg.task.lead_times}
    found |= {f"data.split.{name}": cfg.data.split[name] for name in ("train", "val", "gap_days")}
    given = {name: value for name, value in found.items() if value is not None}
    settings = {name: value if isinstance(value, str | int) else plain(value) for name, value in given.items()}
    command = store_command(folder, moments, settings)
    return command and (
        f"a store of the samples is faster to read: {command}; then train with store={folder}, in another run_dir"
    )


def run_noise(cfg: DictConfig, options: TrainerOptions) -> str:
    """Fit the noise of the finished corrector, if its file has none; see `training.noise_fit`."""
    file = Path(cfg.run_dir) / "corrector.safetensors"
    corrector = Corrector.load(file)
    if corrector.noise is not None:
        return f"{file} has noise already"
    add_noise(corrector.to(choose_device("auto", SingleProcess())), make_plan(cfg, options))
    corrector.cpu().save(file)
    return f"wrote {file} with noise, for members=noise"


def run_test_check(cfg: DictConfig) -> str:
    """Run the experiment's check on the test years; return its results, which are kept in `test_check.json`."""
    file = Path(cfg.run_dir) / "test_check.json"
    if not file.exists():
        corrector = Corrector.load(file.with_name("corrector.safetensors"))
        archive, dates = build(cfg.data.archive), build(cfg.data.split).dates("test", corrector.task.lead_times)
        with Progress("test check"):
            result = build(cfg.test_check)(
                corrector,
                archive,
                ForecastDataset(archive, corrector.task, dates, members=cfg.max_members).with_all_groups(),
            )
        write_text(file, json.dumps(result, indent=2))
    return f"test check: {json.loads(file.read_text())}"


def claim_folder(plan: TrainingPlan, run_dir: Path, options: dict[str, Any]) -> Run:
    """Claim the run folder, and open the data."""
    with Progress("opening the data"):
        source, task = plan.sources["train"], plan.task
        fingerprint = source.fingerprint
        identity = claim(run_dir, options, fingerprint)
        return Run(run_dir, identity, fingerprint, source.ensemble_fields(task.inputs, task.lead_times).grid)


if __name__ == "__main__":
    main()
