"""Model: what the program asks of a post-processing model, and what a model may say of itself.

    class Shift(nn.Module):
        moments_only = tiles = any_grid = True

        def __init__(self, task, grid, size=0.0): ...

        def forward(self, sample): return Normal(...)

A model is a `torch.nn.Module` and inherits nothing else. It must be built as `Model(task, grid, **options)`, and its
`forward` must return a distribution. It may have the methods `fit` and `normalise`, and it may make the claims of
`Claims`. Training, evaluation and correction ask a model for these through this file only.
`tests/models/test_contract.py` checks every claim of every model.
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


class Model(Protocol):
    """What every model must have.

    Shapes: the sample holds `ensemble` (B, M, C, H, W) with any number of members M, `mask` (B, C, H, W) and `static`
    (B, S, H, W); the distribution covers the targets, (B, T, H, W). Samples come normalised, unless the model is
    `physical`. Values behind the mask and the order of members must not change the distribution; a model with the
    claim `first_member` may tell the first member from the others.

    `grid` is a `Grid`, or for a model with the claim `tiles` the process's `Domain` of one. Sizes of parameters and
    buffers must not depend on which tile the process has: every process keeps those of the whole grid.
    """

    def __init__(self, task: Task, grid: Grid | Domain, **options: Any) -> None: ...

    def forward(self, sample: Sample) -> Distribution:
        """Return the distribution of every target in every cell, (B, T, H, W)."""
        ...


@runtime_checkable
class Fitted(Protocol):
    """What a model has that learns something from the training samples before the first step, or everything."""

    def fit(self, batches: Iterable[Sample]) -> None:
        """Learn from the batches, which can be iterated over as often as needed; each pass reads the files again."""
        ...


@runtime_checkable
class Rescaled(Protocol):
    """What a model has that needs to know the units of its samples, for example to place a physical bound."""

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Take note that targets come as (x - location) / scale; both are (T, H, W). Called before `fit`."""
        ...


@dataclass(frozen=True)
class Claims:
    """What a model says of itself, each by an attribute of the same name that is True or False.

    `moments_only` and `targets_only` are asked of the class, before there is a model. The others may depend on the
    model's options: then they are a property, or are set in the constructor.
    """

    moments_only: bool = False
    """It reads only mean and standard deviation of the ensemble: two pseudo-members that have both train it as well."""
    targets_only: bool = False
    """It reads only those inputs that are targets: the others are not read from the files."""
    physical: bool = False
    """It takes samples and gives distributions in physical units: there is no normalisation."""
    first_member: bool = False
    """It reads the first member by itself; the order of the others does not change the distribution."""
    any_size: bool = False
    """Fair CRPS and spread over error do not depend on the number of members: `evaluate sizes=...` checks it."""
    any_grid: bool = False
    """It can be built on every grid of at least 5 rows and 5 columns. Without this claim, its constructor refuses
    a grid that does not suit it, by an `InputError`."""
    tiles: bool = False
    """Several processes can share a field, one tile each, and give the numbers of one process. Without this claim,
    it is built on whole grids only, and a mesh with more than one tile is refused."""


BEFORE_BUILDING = ("moments_only", "targets_only")
"""Claims that decide what is read from the files, so that they are asked of the class."""
NAMES = tuple(field.name for field in fields(Claims))
METHODS = ("fit", "normalise")


def claims(model: object) -> Claims:
    """Return what a model, or its class, says of itself; what it does not mention is not claimed.

    Of a class, a claim that depends on options counts as not made. Raises `InputError` for a claim that is neither
    True nor False, or whose name is misspelt, because a claim that is overlooked would be a wrong result.
    """
    owner = model if isinstance(model, type) else type(model)
    _refuse_misspelt(model, owner)
    found = {name: _value(model, owner, name) for name in NAMES}
    for name, value in found.items():
        if type(value) is not bool:
            raise InputError(f"{owner.__name__}.{name} must be True or False, got {value!r}; see {__name__}")
        if name in BEFORE_BUILDING and value != inspect.getattr_static(owner, name, False):
            raise InputError(
                f"{owner.__name__}.{name} is asked before the model is built; state it in the body of the class, as "
                f"{name} = {value}"
            )
    return Claims(**found)


def may_take_tiles(kind: type[nn.Module]) -> bool:
    """Return whether a model of this class claims `tiles`, if only with some of its options."""
    return isinstance(inspect.getattr_static(kind, "tiles", None), property) or claims(kind).tiles


def fit(model: nn.Module, batches: Iterable[Sample]) -> None:
    """Let the model learn what it can learn before the first step, if it has the method `fit`."""
    if isinstance(model, Fitted):
        model.fit(batches)


def normalise(model: nn.Module, location: Tensor, scale: Tensor) -> None:
    """Tell the model in which units (x - location) / scale targets come, if it has the method `normalise`."""
    if isinstance(model, Rescaled):
        model.normalise(location, scale)


def _value(model: object, owner: type, name: str) -> Any:
    stated = inspect.getattr_static(owner, name, False)
    if isinstance(stated, property):
        # Called here, because `nn.Module` hides an AttributeError inside a property.
        return False if model is owner else stated.fget(model)  # type: ignore[misc]
    return stated if model is owner else getattr(model, name, False)


def _refuse_misspelt(model: object, owner: type) -> None:
    """Refuse an attribute that is True or False and nearly a claim, and a method that is nearly one of `METHODS`."""
    for name, value in _own_attributes(model, owner):
        near: list[str] = []
        if isinstance(value, bool) and name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.8)
        elif inspect.isfunction(value) and name not in METHODS:
            near = difflib.get_close_matches(name, METHODS, n=1, cutoff=0.88)
        if near:
            raise InputError(
                f"{owner.__name__}.{name} has no effect; if you mean {near[0]}, spell it so, else choose a name that "
                f"is less like it (see {__name__})"
            )


def _own_attributes(model: object, owner: type) -> Iterator[tuple[str, object]]:
    """Return the public attributes that are not those of `nn.Module`."""
    held: list[Mapping[str, Any]] = [vars(kind) for kind in owner.__mro__ if kind not in (nn.Module, object)]
    if model is not owner:
        held.append({name: value for name, value in vars(model).items() if isinstance(value, bool)})
    return (item for attributes in held for item in attributes.items() if not item[0].startswith("_"))
