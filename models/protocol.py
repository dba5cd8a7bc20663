"""Protocols of models: the methods that a post-processing model must have, and the ones it may have.

    class Shift(nn.Module):
        moments_only = tiles = any_grid = True

        def __init__(self, task, grid, size=0.0): ...

        def forward(self, sample): return Normal(...)

A model is a `torch.nn.Module` and inherits nothing else. It must be built as `Model(task, grid, **options)`, and its
`forward` must return a distribution. It may have the methods `fit` and `normalise` and the attribute `report`, and it
may make the claims of `Claims`. The option `power` belongs to the normaliser: a model is built without it, and sees
roots of the targets. Training, evaluation and correction use only these. `tests/models/test_contract.py` checks every
claim of every model.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Distribution
from models.parallel.domain import Domain
from models.statistical.cases import FitReport


class Model(Protocol):
    """Methods that every model must have.

    Shapes: the sample holds `ensemble` (B, M, C, H, W) with any number of members M, `mask` (B, C, H, W) and `static`
    (B, S, H, W); the distribution covers the targets, (B, T, H, W). Samples are normalised, unless the model claims
    `physical`. Values where the mask is False, and the order of members, must not change the distribution; a model that
    claims `first_member` may treat the first member differently.

    `grid` is a `Grid`, or for a model that claims `tiles` the `Domain` of this process. Sizes of parameters and buffers
    must not depend on the tile: every process keeps the tensors of the whole grid.
    """

    def __init__(self, task: Task, grid: Grid | Domain, **options: Any) -> None: ...

    def forward(self, sample: Sample) -> Distribution:
        """Return the distribution of every target in every cell, (B, T, H, W)."""
        ...


@runtime_checkable
class Fittable(Protocol):
    """A model, or part of one, that is fitted to the training samples before the first training step."""

    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit to the batches, which can be iterated over several times; each pass reads the files again."""
        ...


@runtime_checkable
class UnitAware(Protocol):
    """A model that needs the units of its samples, for example for a physical lower bound."""

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Store the units of the targets, (x - location) / scale, with both (T, H, W). Called before `fit`."""
        ...


@runtime_checkable
class Reporting(Protocol):
    """A module whose `fit` leaves a report; the corrector collects the reports of all modules of a model."""

    report: FitReport


@dataclass(frozen=True)
class Claims:
    """Properties of a model, each stated by an attribute of the same name that is True or False.

    Those of `CLASS_CLAIMS` are read from the class, before the model is built. The others may depend on the model's
    options: then they are a property, or are set in the constructor.
    """

    moments_only: bool = False
    """The model uses only mean and standard deviation of the ensemble, so it can train on two pseudo-members that have
    both."""
    targets_only: bool = False
    """The model uses only inputs that are targets; other inputs are not read from the files."""
    reads_groups: bool = False
    """Of the other inputs, a model that claims `targets_only` gets the means of groups of members of its targets."""
    reads_memberships: bool = False
    """The model reads members one by one, and gets for each of them whether it belongs to a group of `Task.groups`. The
    share of a group may change between forecasts, so a mean over members of these inputs says nothing."""
    any_groups: bool = False
    """The model corrects a forecast without any member of some groups of `Task.systems` from the other groups. The
    channels of these groups are masked. Without this claim, training leaves such forecasts out, and `correct` refuses
    them."""
    physical: bool = False
    """The model gets samples and returns distributions in physical units, without normalisation."""
    first_member: bool = False
    """The model treats the first member differently; the order of the others does not change the distribution."""
    any_size: bool = False
    """Fair CRPS and spread-error ratio do not depend on the number of members; `evaluate member_counts=...` checks
    this."""
    any_grid: bool = False
    """The model can be built on every grid with at least 5 rows and 5 columns. Without this claim, its constructor
    raises `InputError` for a grid that does not suit it."""
    tiles: bool = False
    """Several processes can share a field, one tile each, and give the results of one process. Without this claim, the
    model is built on whole grids only, and a mesh with more than one tile is an error."""
    cellwise: bool = False
    """The distribution of a cell depends on the inputs of this cell alone. Without this claim, the model is built on
    grids only, and `Points` (stations, projected and curvilinear grids) are an error."""


CLASS_CLAIMS = ("moments_only", "targets_only", "reads_groups", "reads_memberships", "any_groups")
"""Claims that decide which data are read from the files, so they are read from the class."""
CLAIM_NAMES = tuple(field.name for field in fields(Claims))
OPTIONAL_METHODS = ("fit", "normalise")


def claims(model: object) -> Claims:
    """Return the claims of a model or of its class; a missing attribute means False.

    For a class, a claim that depends on options is False. Raises `InputError` for a claim that is neither True nor
    False, and for a misspelt name, because an overlooked claim would give wrong results.

    >>> class Shift(nn.Module):
    ...     any_grid = True
    >>> claims(Shift).any_grid, claims(Shift).tiles
    (True, False)
    """
    owner = model if isinstance(model, type) else type(model)
    _refuse_misspelt(model, owner)
    found = {name: _claim(model, owner, name) for name in CLAIM_NAMES}
    for name, value in found.items():
        if type(value) is not bool:
            raise InputError(f"{owner.__name__}.{name} must be True or False, got {value!r}; see {__name__}")
        if name in CLASS_CLAIMS and value != inspect.getattr_static(owner, name, False):
            raise InputError(
                f"{owner.__name__}.{name} is read before the model is built; set it in the body of the class, as "
                f"{name} = {value}"
            )
    return Claims(**found)


def may_claim(kind: type[nn.Module], name: str) -> bool:
    """Return whether a model of this class makes the claim `name`, perhaps only with some of its options."""
    optional = isinstance(inspect.getattr_static(kind, name, None), property)
    return optional or bool(getattr(claims(kind), name))


def fit(model: nn.Module, batches: Iterable[Sample]) -> None:
    """Call the method `fit` of the model, if it has one."""
    if isinstance(model, Fittable):
        model.fit(batches)


def normalise(model: nn.Module, location: Tensor, scale: Tensor) -> None:
    """Call the method `normalise` of the model, if it has one."""
    if isinstance(model, UnitAware):
        model.normalise(location, scale)


def fit_reports(model: nn.Module) -> list[FitReport]:
    """Return the reports of all modules of a model that have one."""
    reports = [module.report for module in model.modules() if isinstance(module, Reporting)]
    return [report for report in reports if isinstance(report, FitReport)]


def _claim(model: object, owner: type, name: str) -> Any:
    stated = inspect.getattr_static(owner, name, False)
    if isinstance(stated, property):
        # Called here, because `nn.Module` hides an AttributeError inside a property.
        return False if model is owner else stated.fget(model)  # type: ignore[misc]
    return stated if model is owner else getattr(model, name, False)


def _refuse_misspelt(model: object, owner: type) -> None:
    """Raise `InputError` for a True or False attribute, or a method, whose name nearly equals a name of a protocol."""
    for name, value in _own_attributes(model, owner):
        near: list[str] = []
        if isinstance(value, bool) and name not in CLAIM_NAMES:
            near = difflib.get_close_matches(name, CLAIM_NAMES, n=1, cutoff=0.8)
        elif inspect.isfunction(value) and name not in OPTIONAL_METHODS:
            near = difflib.get_close_matches(name, OPTIONAL_METHODS, n=1, cutoff=0.88)
        if near:
            raise InputError(
                f"{owner.__name__}.{name} has no effect; rename it to {near[0]} if you mean this, otherwise to a name "
                f"that is less similar (see {__name__})"
            )


def _own_attributes(model: object, owner: type) -> Iterator[tuple[str, object]]:
    """Yield the public attributes of a model that `nn.Module` does not have."""
    held: list[Mapping[str, Any]] = [vars(kind) for kind in owner.__mro__ if kind not in (nn.Module, object)]
    if model is not owner:
        held.append({name: value for name, value in vars(model).items() if isinstance(value, bool)})
    return (item for attributes in held for item in attributes.items() if not item[0].startswith("_"))
