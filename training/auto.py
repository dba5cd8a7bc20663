"""`train_auto`: the model `auto`, to which networks are added if they are better on the validation dates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from torch import nn

from data_pipeline.common.cost_meter import CostMeter
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import write_text
from data_pipeline.common.identity import hash_of
from data_pipeline.common.messages import say
from data_pipeline.common.named_options import named_options
from data_pipeline.dataset import ForecastDataset, batches
from models.averages.auto import MINUTES, Auto, check_minutes, without_unused
from models.averages.combination import combine, set_weights, weigh_on_validation
from models.construct import model_class
from models.corrector import Corrector, reads_moments
from models.device import choose_device
from models.parallel.mesh import Mesh
from models.parallel.single_process import SingleProcess
from training.training_run import Run, TrainingPlan, check_closed_form, train_corrector

NETWORKS = ("mlp", "unet")
"""Networks that are tried: a network of single cells, and on grids one that sees the neighbours."""
CHOICE = "networks.json"
"""File of the run folder with the networks of the run, so that a resumed run trains the same."""


def is_auto(plan: TrainingPlan) -> bool:
    """Return whether the plan's model is `auto`."""
    return issubclass(model_class(plan.spec.get("_target_")), Auto)


def train_auto(
    plan: TrainingPlan, run: Run, mesh: Mesh, meter: CostMeter, keep: Callable[[Corrector], None],
    advice: Callable[[bool], str] = lambda moments: "",
) -> Corrector | None:  # fmt: skip
    """Train the networks that fit into `minutes`, then the statistical parts; keep their average.

    Each network has a folder of its own in the run folder. Arguments are those of `train_corrector`.
    """
    check_minutes(plan.spec.get("minutes", MINUTES))
    check_closed_form("auto", nn.Identity(), plan.loss, plan.teacher)
    given = {"initial_weights": plan.initial_weights, "from": plan.pretrained, "teacher": plan.teacher}
    if named := [name for name, value in given.items() if value is not None]:
        raise InputError(
            f"model=auto trains several models, so {named[0]} cannot be given; choose one, such as model=unet"
        )
    files: dict[str, Path] = {}
    for name in choose_networks(plan, run, mesh):
        folder, spec = run.folder / name, named_options("model", name)
        files[name] = folder / "corrector.safetensors"
        if not mesh.run_on_first(files[name].exists):
            say(f"auto: training the network {name}")
            own = run._replace(folder=folder, identity=hash_of(run.identity, spec))
            if train_corrector(replace(plan, spec=spec), own, mesh, meter, saver(files[name], mesh), advice) is None:
                return None  # pruned

    kept: list[Corrector] = []

    def keep_average(corrector: Corrector) -> None:
        own = without_unused(corrector)
        kept.append(add_networks(own, files, plan, run) if files else own)
        keep(kept[0])

    train_corrector(plan, run, mesh, meter, keep_average, advice)
    return kept[0] if kept else None


def saver(file: Path, mesh: Mesh) -> Callable[[Corrector], None]:
    """Return a function that saves a corrector, on the first rank."""

    def save(corrector: Corrector) -> None:
        mesh.run_on_first(lambda: corrector.save(file))

    return save


def choose_networks(plan: TrainingPlan, run: Run, mesh: Mesh) -> list[str]:
    """Return the networks that can be trained in the minutes of `auto`, and say why others are left out.

    The choice is kept in the run folder.
    """

    def choose() -> list[str]:
        file, left = run.folder / CHOICE, float(plan.spec.get("minutes", MINUTES))
        if file.exists():
            return list(json.loads(file.read_text()))
        chosen = []
        if "val" not in plan.sources:
            say("auto: no networks, because there are no validation dates; give them as data.split.val=[first, last]")
        for name in NETWORKS if left and "val" in plan.sources else ():
            try:
                minutes = network_minutes(plan, run, name)
            except InputError as error:
                say(f"auto: {name} is left out: {error}")
                continue
            if minutes <= left:
                chosen.append(name)
                left -= minutes
            else:
                say(f"auto: {name} is left out: it would take about {minutes:.2g} minutes, and {left:.2g} are left")
        write_text(file, json.dumps(chosen))
        return chosen

    found: list[str] = mesh.broadcast(mesh.run_on_first(choose))
    return found


def network_minutes(plan: TrainingPlan, run: Run, name: str) -> float:
    """Return the minutes that the training of a network takes, from a step on one forecast."""
    # Lightning is imported only where a network is trained.
    from training.memory.step_cost import measure_step
    from training.step.correction_module import CorrectionModule

    spec, task, options = named_options("model", name), plan.task, plan.options
    moments = reads_moments(spec, task)
    dates = plan.split.dates("train", task.lead_times)
    data = ForecastDataset(plan.sources["train"], task, dates, members=plan.members, moments=moments)
    data = data.with_all_groups()
    corrector = Corrector(task, run.grid, spec, data.static, {}, data.meanings)
    module = CorrectionModule(corrector, options)
    return measure_step(module, next(batches(data, 1)), nullcontext).seconds * len(data) * options.epochs / 60


def add_networks(auto: Corrector, files: Mapping[str, Path], plan: TrainingPlan, run: Run) -> Corrector:
    """Return the average of `auto` and the networks that improve it on the validation dates.

    The weights of each half of the validation dates are tested on the other half. The networks have seen these dates
    too, to choose their epoch.
    """
    own = run.folder / "auto.safetensors"
    auto.save(own)
    data = ForecastDataset(
        plan.sources["val"], plan.task, plan.split.dates("val", plan.task.lead_times), members=plan.members
    ).with_all_groups()
    paths = [own, *files.values()]
    weights = weigh_on_validation(combine(paths), data, choose_device(plan.options.accelerator, SingleProcess()))
    used = [k for k, weight in enumerate(weights) if weight.any()]
    if used == [0]:
        say("auto: the networks do not improve the forecast")
        return auto
    average = combine([paths[k] for k in used])
    set_weights(average, weights[used])
    return average
