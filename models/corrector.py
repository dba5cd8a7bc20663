"""Corrector: task, grid, normaliser and model as one thing, and as one file.

Physical units in, physical units out. The file holds tensors and JSON (safetensors): opening one runs no code
from it, only the classes that it names in `models` and in packages that are registered (`models.target`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

from data_pipeline.checks import made
from data_pipeline.dataset import ForecastDataset, batches
from data_pipeline.errors import InputError
from data_pipeline.files import atomic_path
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models import protocol
from models.coupling import written_members
from models.distribution import Distribution
from models.normalizer import Normalizer
from models.spatial.domain import Domain
from models.spatial.exchange import assemble
from models.target import model_class

FORMAT = 1


class Corrector(nn.Module):
    """A model with all that it needs to correct a forecast.

    `spec` describes the model (`_target_` and hyper-parameters), `static` are its static fields in physical units,
    `provenance` says what it was made from; evaluation refuses years that it names as training or validation.
    On a domain of several ranks it takes and gives the own tile; what it keeps, and its file, is that of the globe.
    """

    static: Tensor

    def __init__(
        self, task: Task, grid: Grid | Domain, spec: dict[str, Any], static: Tensor, provenance: dict | None = None
    ) -> None:
        super().__init__()
        self.domain = Domain.of(grid)
        self.task, self.grid, self.spec, self.provenance = task, self.domain.grid, dict(spec), dict(provenance or {})
        self.model = build_model(spec, task, grid)
        self.normalizer = Normalizer(task, grid)
        self.register_buffer("static", static.clone())

    def forward(self, sample: Sample) -> Distribution:
        """Return the corrected distribution over (B, T, H, W) in physical units."""
        return self.normalizer.physical(self.model(self.normalizer(sample)))

    def members(self, sample: Sample, raw: Tensor | None = None, levels: str = "hazen", seed: int = 0) -> Tensor:
        """Return the corrected members (M, B, T, H, W) of a batch; see `written_members`."""
        return written_members(self(sample), sample, self.task, self.domain, raw, levels, seed).members

    def on(self, domain: Grid | Domain) -> Corrector:
        """Return this corrector for the own tile of its grid in `domain`."""
        if self.domain.ranks == Domain.of(domain).ranks == 1:
            return self
        other = Corrector(self.task, domain, self.spec, self.static, self.provenance)
        other.load_state_dict(self.state_dict())
        return other.train(self.training)

    def bind(self, task: Task) -> Callable[[Sample], Distribution]:
        """Return this corrector as a function of samples of a wider task."""
        if task == self.task:
            return self
        return lambda sample: self(narrow(sample, task, self.task))

    def fit(self, dataset: Dataset[Sample], batch_size: int = 8) -> None:
        """Fit the normaliser, then what the model can learn at once rather than step by step.

        A model that claims `physical` gets values in physical units.
        """
        if not protocol.claims(self.model).physical:
            self.normalizer.fit(lambda: batches(dataset, batch_size))
        protocol.normalise(self.model, *self.normalizer.target_scaling)
        protocol.fit(self.model, Passes(lambda: map(self.normalizer, batches(dataset, batch_size))))

    def save(self, path: str | Path) -> None:
        """Write the one file."""
        description = {
            "format": FORMAT,
            "task": self.task.to_json(),
            "grid": {"latitudes": self.grid.latitudes, "longitudes": self.grid.longitudes},
            "model": self.spec,
            "provenance": self.provenance,
        }
        with atomic_path(path) as partial:
            tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
            save_file(tensors, partial, metadata={"deepweather": json.dumps(description)})

    @classmethod
    def load(cls, path: str | Path) -> Corrector:
        """Read the one file; whatever is wrong with it is said with its name."""
        if not Path(path).is_file():
            raise InputError(f"there is no corrector {path}; make one with `deepweather train`")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is not a whole safetensors file ({error}); train the corrector again") from None
        if "deepweather" not in metadata:
            raise InputError(f"{path} holds tensors but no corrector; give the corrector.safetensors of a training run")
        description = json.loads(metadata["deepweather"])
        if description["format"] != FORMAT:
            raise InputError(f"{path} has format {description['format']}, this version reads {FORMAT}; train it again")
        corrector = cls(
            Task(**description["task"]),
            Grid(**description["grid"]),
            description["model"],
            tensors["static"],
            description["provenance"],
        )
        try:
            corrector.load_state_dict(tensors)
        except RuntimeError:
            model = type(corrector.model).__name__
            raise InputError(f"{path} holds a model {model} of another version of this; train it again") from None
        return corrector.eval()


@dataclass(frozen=True)
class Passes(Iterable[Sample]):
    """Training samples that may be gone through as often as a model has things to learn."""

    begin: Callable[[], Iterator[Sample]]

    def __iter__(self) -> Iterator[Sample]:
        return self.begin()


def reference(name: str, task: Task, grid: Grid | Domain, years_of: Callable[[Task], ForecastDataset]) -> Corrector:
    """Return the corrector `raw` or `climatology`, which need no training run.

    `years_of(task)` opens the training years, where the own tile of `grid` lies; climatology is fitted on them.
    """
    spec = {"_target_": {"raw": "models.raw.Raw", "climatology": "models.climatology.Climatology"}[name]}
    task = needs(spec, task)
    dataset = years_of(task)
    corrector = Corrector(task, grid, spec, assemble(dataset.static, Domain.of(grid)))
    if name != "raw":
        corrector.fit(dataset)
    return corrector.eval()


def narrow(sample: Sample, task: Task, to: Task) -> Sample:
    """Return a batch of `task` as one of `to`, whose channels, static fields and targets are among those of `task`."""
    inputs = [task.channels.index(channel) for channel in to.channels]
    return sample._replace(
        ensemble=sample.ensemble[:, :, inputs],
        mask=sample.mask[:, inputs],
        static=sample.static[:, [task.static_names.index(name) for name in to.static_names]],
        target=sample.target[:, [task.targets.index(variable) for variable in to.targets]],
    )


def needs(spec: dict[str, Any], task: Task) -> Task:
    """Return what the model of `spec` reads of a task: all of it, or for some models the targets alone."""
    return task.only_targets() if protocol.claims(model_class(spec.get("_target_"))).targets_only else task


def reads_moments(spec: dict[str, Any]) -> bool:
    """Return whether mean and spread of the ensemble are all that the model of `spec` looks at."""
    return protocol.claims(model_class(spec.get("_target_"))).moments_only


def build_model(spec: dict[str, Any], task: Task, grid: Grid | Domain) -> nn.Module:
    """Make the model that `spec` describes.

    Raises `InputError` for a model without the claim `tiles` where ranks share a field, and for one that cannot be
    built as `Model(task, grid, **options)`.
    """
    kind, domain = model_class(spec.get("_target_")), Domain.of(grid)
    options = {name: value for name, value in spec.items() if name != "_target_"}
    try:
        inspect.signature(kind).bind_partial(task, grid)
    except TypeError:
        raise InputError(
            f"{spec['_target_']} cannot be built as Model(task, grid, **options); see models/protocol.py"
        ) from None
    if not protocol.may_take_tiles(kind):
        _refuse_tiles(kind, domain)
        return made(kind.__name__, partial(kind, task, domain.grid), options)
    model = made(kind.__name__, partial(kind, task, grid), options)
    if not protocol.claims(model).tiles:
        _refuse_tiles(kind, domain)
    return model


def _refuse_tiles(kind: type[nn.Module], domain: Domain) -> None:
    if domain.ranks > 1:
        raise InputError(
            f"model {kind.__name__} works on whole fields (it does not claim `tiles`), and the mesh has "
            f"{domain.tiles[0]} x {domain.tiles[1]} tiles; give the processes other samples instead, such as "
            f"trainer.mesh=[{domain.ranks},1]"
        )
