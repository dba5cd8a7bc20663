"""The function `train_corrector` fits a corrector from data sources and options, for the verb `train` and for `fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from data_pipeline.common.cost_meter import CostMeter
from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say, warn
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.prefetch.budget import Budget, describe_budget
from data_pipeline.protocols import DataSource
from data_pipeline.sample import Sample, select_channels
from data_pipeline.samples.sample_reader import static_fields
from data_pipeline.sources.plausibility import data_warnings
from data_pipeline.split import Split
from data_pipeline.task import Task
from data_pipeline.truth_checks import TRUTH_TABLE
from data_pipeline.variables.meaning import list_unknown
from models.construct import model_class
from models.corrector import Corrector, build_model, reads_moments
from models.distribution import Distribution, Ensemble, Normal
from models.laws import describe_laws, with_laws
from models.layers.channel_axis import check_channel_axis
from models.outline import check_memory, outline
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh
from models.parallel.mesh_shape import AUTO
from models.protocol import claims
from models.provenance.groups import stated_groups
from models.provenance.training_dates import split_provenance, state_training, valid_days
from training.initial_state import fit_corrector, load_initial_weights, warning_of_validation
from training.optimization.eecrps import EECRPS, WeightedByIndex
from training.optimization.fine_tuning import PretrainedWeights
from training.optimization.loss import CRPS, Loss
from training.optimization.teacher import Teacher
from training.run.fitted_state import FITTED_FILE, FittedState
from training.run.pruning import pruned_message
from training.run.run_statistics import RunStatistics
from training.run.run_summary import RunSummary
from training.run.trainer_options import TrainerOptions
from training.step.batch_loss import BatchLoss, validation_crps
from training.step.mesh_choice import settle_mesh
from training.step.training_data import open_training_data
from training.validation_references import compare_lead_times, fitted_references


@dataclass(frozen=True)
class TrainingPlan:
    """The model, the data and the options of a training.

    `spec` describes the model, `task` is the part of a task that the model reads (`models.corrector.needed_task`).
    `sources` open the forecasts of `train` and, if the split validates, of `val`. `members` limits each forecast to its
    first members. `initial_weights`, `pretrained` and `teacher` are files of correctors, as in the options of `train`.
    """

    spec: Mapping[str, Any]
    task: Task
    sources: Mapping[str, DataSource]
    split: Split
    loss: Loss
    options: TrainerOptions
    budget: Budget
    members: int | None = None
    statistics: RunStatistics = field(default_factory=lambda: RunStatistics(None))
    initial_weights: str | None = None
    pretrained: str | None = None
    teacher: str | None = None
    teacher_weight: float | None = None
    regridding: str | None = None
    """How the fields were brought to the grid; see `data_pipeline.archive.regridding_of`."""


class Run(NamedTuple):
    """The folder in which a run keeps checkpoints, its identity, and the fingerprint and grid of its data."""

    folder: Path
    identity: str
    fingerprint: str
    grid: Grid

    @property
    def fitted(self) -> FittedState:
        """The results of the fits before the first training step, in the run folder."""
        return FittedState(self.folder / FITTED_FILE, self.identity)


def train_corrector(
    plan: TrainingPlan,
    run: Run,
    mesh: Mesh,
    meter: CostMeter,
    keep: Callable[[Corrector], None],
    advice: Callable[[bool], str] = lambda moments: "",
) -> Corrector | None:
    """Return the fitted corrector; None if pruning ended the run (`TrainerOptions.pruning`).

    A run that was interrupted continues from the last checkpoint in its folder. `keep` is called with the corrector
    before the summary marks the run as finished; all ranks call it. `advice(moments)` returns how to read the samples
    faster.
    """
    options, loss, task, split = plan.options, plan.loss, plan.task, plan.split
    spec = with_laws(plan.spec, task)
    dates = {name: split.dates(name, task.lead_times) for name in plan.sources}

    def was_pruned() -> bool:
        why = mesh.run_on_first(lambda: "" if options.pruning is None else pruned_message(run.folder))
        if why:
            say(why)
        return bool(why)

    if was_pruned():
        return None
    static = static_fields(run.grid, task, plan.sources["train"])
    if (tensors := outline(lambda: Corrector(task, run.grid, spec, static))) is not None:
        check_memory(spec["_target_"], tensors)
        check_validation(spec["_target_"], tensors, split)
        check_closed_form(spec["_target_"], tensors, loss, plan.teacher)
    teacher = None if plan.teacher is None else Teacher(plan.teacher, task, loss, plan.teacher_weight)

    moments = reads_moments(spec, task) and not loss.reads_members and (teacher is None or teacher.moments)
    if options.mesh == AUTO:
        members = 2 if moments else plan.members or 10
        mesh, options = settle_mesh(mesh, options, partial(build_model, spec, task), task, run.grid, members)

    def corrector_on(domain: Domain) -> Corrector:
        torch.manual_seed(options.seed)
        return Corrector(task, domain, spec, static, provenance, train.meanings)

    def samples_on(domain: Domain, name: str) -> ForecastDataset:
        rows, columns = domain.tile
        samples = ForecastDataset(
            plan.sources[name], task, dates[name], members=plan.members, rows=rows, columns=columns, moments=moments
        )
        # Samples of fewer members have no place in a batch of members, but moments have one size.
        return samples if moments and claims(model_class(spec["_target_"])).any_groups else samples.with_all_groups()

    def warn_of_validation(path: str, seen: Mapping[str, Any]) -> None:
        if val and (warning := warning_of_validation(path, seen, valid_days(*val.times()))):
            warn(warning)

    domain = mesh.domain(run.grid)
    if isinstance(loss, EECRPS):
        loss = loss.load(domain, task, dates["train"], run.fingerprint)
    train, val = samples_on(domain, "train"), samples_on(domain, "val") if split.validates else None
    used = {"train": train} | ({"val": val} if val else {})
    if isinstance(loss, WeightedByIndex):
        for dataset in used.values():
            loss.check_starts(dataset.starts)
    provenance = {
        **split_provenance(split, task.lead_times), "members": train.members, "run": run.identity,
        "data": run.fingerprint, "deepweather": version("deepweather"), "regridding": plan.regridding,
        **stated_groups(train),
        "ledger": {name: samples.ledger.to_json() for name, samples in used.items()},
    }  # fmt: skip
    say(
        f"{len(train)} forecasts to train on, {len(val) if val else 'none'} to validate; "
        f"{train.members} members on {run.grid}"
        + (f", in {domain.tiles[0]} x {domain.tiles[1]} tiles" if mesh.tiles > 1 else "")
        + (f", channels of wide layers shared by {mesh.channels}" if mesh.channels > 1 else "")
        + (f", batches shared by {mesh.data}" if mesh.data > 1 else "")
    )
    for name, samples in used.items():
        used_forecasts, *omissions = samples.ledger.lines({"train": "training", "val": "validation"}[name])
        say(used_forecasts)
        for omission in omissions:
            warn(omission)
    if laws := describe_laws(spec, task):
        say(f"distributions: {laws}")
    if unknown := list_unknown(train.meanings):
        say(unknown)
    first = plan.sources["train"], task, dates["train"], plan.members
    table = run.folder / TRUTH_TABLE
    for warning in mesh.run_on_first(lambda: data_warnings(*first, refuse=True, table=table)):
        warn(f"warning: {warning}")
    say(describe_budget(plan.budget))
    with (
        RunSummary(run.folder, meter, mesh) as summary,
        open_training_data(train, val, plan.budget, options, mesh) as data,
    ):
        summary.advice = advice(moments and plan.members is None)
        summary.enter("fit")
        on_tile = partial(samples_on, name="train")
        corrector = corrector_on(domain)
        check_channel_axis(corrector.model, mesh)
        if plan.initial_weights is not None:
            load_initial_weights(corrector, plan.initial_weights)
            say(f"initial weights from {plan.initial_weights}")
        elif run.fitted.restore(corrector, mesh):
            say(f"fitted before, read from {run.folder / FITTED_FILE}")
        else:
            # Before the fit, which may take hours: a pretrained corrector of another task or model is refused here.
            pretrained = None if plan.pretrained is None else PretrainedWeights(plan.pretrained, task, spec)
            made = plan.statistics.normalization(train, dates["train"], run.fingerprint, moments)
            if made is not None:
                say(f"normalisation from {plan.statistics.folder}")
            fit_corrector(corrector, corrector_on, on_tile, data.train, plan.budget, options.batch_size, mesh, made)
            if pretrained is not None:
                say("\n".join(pretrained.copy_to(corrector)))
                warn_of_validation(pretrained.path, pretrained.provenance)
            run.fitted.save(corrector, mesh)
        if teacher is not None:
            teacher.place(domain)
            teacher.state(corrector.provenance)
            say(teacher.describe())
            warn_of_validation(teacher.path, teacher.provenance)
        summary.enter("start")
        raw = partial(raw_forecast, task=task, moments=moments)
        module = BatchLoss(corrector, options, mesh)
        device = torch.device("cpu")
        if needs_validation(corrector):
            # Importing Lightning takes seconds, which a model that is fitted in closed form does not need.
            from training.network_training import train_network
            from training.step.correction_module import CorrectionModule

            check_validation(spec["_target_"], corrector, split)
            module = CorrectionModule(corrector, options, loss, mesh, len(data.train_batches), raw, teacher)
            device = train_network(module, data, run.folder, summary)
            if was_pruned():
                return None
            days = [valid_days(*samples.times()) for samples in used.values()]
            climate = loss.dates if isinstance(loss, WeightedByIndex) else None
            state_training(corrector.provenance, days[0], days[1], climate)
        else:
            check_closed_form(spec["_target_"], corrector, loss, plan.teacher)
        corrector.eval()
        summary.enter("validate")
        found = None
        if data.val_batches is not None:
            found = validate(module, data.val_batches, device, summary, raw, plan, dates["train"])
        summary.enter("save")
        corrector.cpu()
        keep(corrector)
        say(summary.finish(found))
    return corrector


def validate(
    module: BatchLoss, batches: Iterable[Sample], device: torch.device, summary: RunSummary,
    raw: Callable[[Sample], Distribution], plan: TrainingPlan, training: Dates,
) -> float:  # fmt: skip
    """Compare the corrector with the references on the validation dates, at each lead time; return its CRPS."""
    corrector = module.corrector
    found, own = validation_crps(module, batches, device)
    if not needs_validation(corrector):
        summary.validated(0, 0, None, found)
    models: dict[str, Callable[[Sample], Distribution]] = {"raw": raw}
    models |= fitted_references(
        plan.sources["train"], corrector.task, training, plan.members, corrector, plan.options, module.mesh
    )
    by_lead = {"model": own}
    for name, model in models.items():
        try:
            pooled, by_lead[name] = validation_crps(
                module, batches, device, model.to(device) if isinstance(model, nn.Module) else model
            )
        except InputError as error:
            if name == "raw":
                raise
            say(f"the validation is not compared with {name}: {error}")
        else:
            # The first validation of a network has scored the raw ensemble.
            summary.references.setdefault(name, pooled)
    summary.by_lead_time = by_lead
    references = summary.references
    corrector.provenance |= {"validation_crps": found, "validation_crps_raw": references["raw"]}
    others = "".join(f", {name} {references[name]:.4g}" for name in by_lead if name not in ("model", "raw"))
    line, warning = compare_lead_times(by_lead)
    say(f"validation: crps {found:.4g} in normalised units, raw ensemble {references['raw']:.4g}{others}; {line}")
    if warning:
        warn(f"warning: {warning}")
    return found


def raw_forecast(sample: Sample, task: Task, moments: bool) -> Distribution:
    """Return the raw ensemble (B, T, H, W) of a normalised batch, the reference of the validation.

    With `moments`, the batch holds two pseudo-members, which stand for a normal distribution.
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
