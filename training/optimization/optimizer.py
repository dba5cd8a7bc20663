"""Optimizer and learning-rate scheduler of a run, from `trainer.optimizer` and `trainer.scheduler`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from data_pipeline.common.checks import check_choice, check_integer
from data_pipeline.common.errors import InputError
from models.parallel.domain import Domain
from training.optimization.specs import build_spec, check_spec

ADAMW = {"_target_": "torch.optim.AdamW"}
"""The default optimizer (Loshchilov & Hutter 2019, arXiv:1711.05101)."""
ONE_CYCLE = {"_target_": "torch.optim.lr_scheduler.OneCycleLR"}
"""The default scheduler (Smith & Topin 2019, arXiv:1708.07120)."""

LIGHTNING = ("interval", "frequency", "monitor")
"""Keys of `trainer.scheduler` for Lightning: when the scheduler steps, and which metric it follows."""


def check_optimizer(spec: Any, learning_rate: float, weight_decay: float) -> None:
    """Refuse an optimizer that cannot be created, or that ignores or overrides another option of `trainer`."""
    option = "trainer.optimizer"
    found = check_spec(
        option, spec, Optimizer, given={"params": None, "lr": learning_rate, "weight_decay": weight_decay}
    )
    for name, other in (("params", ""), ("lr", "trainer.learning_rate"), ("weight_decay", "trainer.weight_decay")):
        if name in spec:
            raise InputError(f"{option} must not set {name!r}" + (f"; set {other}" if other else ""))
    if weight_decay and not has_argument(found, "weight_decay"):
        raise InputError(f"{option}: {spec['_target_']} has no weight decay; set trainer.weight_decay=0")


def check_scheduler(spec: Any) -> None:
    """Refuse a scheduler that cannot be created, or whose interval or metric cannot be used."""
    option = "trainer.scheduler"
    arguments = _without_lightning(spec)
    found = check_spec(option, arguments, LRScheduler, given=_given(arguments, None, 1.0, 1))
    if "optimizer" in arguments:
        raise InputError(f"{option} must not set 'optimizer'; set trainer.optimizer")
    check_integer(f"{option}.frequency", spec.get("frequency", 1), 1)
    interval = spec.get("interval", "epoch" if follows_metric(found) else "step")
    check_choice(f"{option}.interval", interval, ("step", "epoch"))
    if follows_metric(found) and interval == "step":
        raise InputError(
            f"{option}: {spec['_target_']} follows a metric that is known once per epoch; leave out interval: step"
        )
    if "monitor" in spec and not follows_metric(found):
        raise InputError(f"{option}: {spec['_target_']} follows no metric; leave out monitor")


def make_optimizer(spec: Mapping[str, Any] | None, groups: list[dict[str, Any]], learning_rate: float) -> Optimizer:
    """Return the optimizer of parameter `groups`, by default AdamW."""
    found: Optimizer = build_spec(
        "trainer.optimizer",
        spec or ADAMW,
        Optimizer,
        given={"params": groups, "lr": learning_rate, "weight_decay": 0.0},
    )
    return found


def make_scheduler(
    spec: Mapping[str, Any] | None, optimizer: Optimizer, learning_rate: float, steps: int, epochs: int
) -> dict[str, Any]:
    """Return a scheduler in Lightning's format, by default one cycle over all steps of the run.

    `{_steps_: fraction}` is a fraction of the scheduler's own steps: the `steps` of the run, or its `epochs` if the
    interval is an epoch, divided by the frequency.
    """
    spec = spec or ONE_CYCLE
    arguments = _without_lightning(spec)
    interval, frequency = str(spec.get("interval", "step")), int(spec.get("frequency", 1))
    own_steps = math.ceil((steps if interval == "step" else epochs) / frequency)
    given = _given(arguments, optimizer, learning_rate, own_steps)
    scheduler = build_spec("trainer.scheduler", arguments, LRScheduler, given=given, steps=own_steps)
    described: dict[str, Any] = {"scheduler": scheduler, "interval": interval, "frequency": frequency}
    if isinstance(scheduler, ReduceLROnPlateau):
        described |= {"interval": "epoch", "monitor": spec.get("monitor", "val_loss")}
    return described


def decay_groups(model: nn.Module, weight_decay: float, grid: tuple[int, int]) -> list[dict[str, Any]]:
    """Return two parameter groups for an optimizer: parameters with weight decay, and parameters without it.

    Weight decay limits matrices and kernels. It does not apply to (decision 016):

    - biases, and scales and shifts of norms: one number for each channel;
    - parameters with a value for every cell of the `grid`: cell embeddings, maps of local layers and of gates;
    - `nn.Embedding`, and the names that a module returns from `no_weight_decay()`, the convention of timm's backbones.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not weight_decay:
        return [{"params": parameters}]
    exempt: set[Tensor] = set()
    for module in model.modules():
        exempt |= {value for value in module.parameters(recurse=False) if not has_weight_decay(module, value, grid)}
        if callable(names := getattr(module, "no_weight_decay", None)):
            exempt |= {module.get_parameter(name) for name in names()}
    groups = [
        {"params": [parameter for parameter in parameters if parameter not in exempt], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter in exempt], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def has_weight_decay(module: nn.Module, parameter: Tensor, grid: tuple[int, int]) -> bool:
    """Return whether weight decay applies to `parameter`, which is a direct parameter of `module`."""
    if isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm | nn.Embedding):
        return False
    if has_value_per_cell(module, parameter, grid):
        return False
    # Trailing dimensions of size 1 only make a vector broadcast over cells.
    size = list(parameter.shape)
    while size and size[-1] == 1:
        size.pop()
    return len(size) >= 2


def has_value_per_cell(module: nn.Module, parameter: Tensor, grid: tuple[int, int]) -> bool:
    """Return whether `parameter`, a direct parameter of `module`, has separate values for every cell of the grid.

    A layer of a network may be on a coarser grid than the corrector.
    """
    own = getattr(module, "out", None)
    grids = {tuple(grid), tuple(own.shape) if isinstance(own, Domain) else tuple(grid)}
    return not isinstance(module, _ConvNd | nn.Linear) and tuple(parameter.shape[-2:]) in grids


def has_argument(function: Any, name: str) -> bool:
    """Return whether a class or function accepts an argument of this name."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def follows_metric(found: Any) -> bool:
    """Return whether a scheduler follows a metric."""
    return isinstance(found, type) and issubclass(found, ReduceLROnPlateau)


def _without_lightning(spec: Any) -> Any:
    return {name: value for name, value in spec.items() if name not in LIGHTNING} if isinstance(spec, Mapping) else spec


def _given(arguments: Any, optimizer: Optimizer | None, learning_rate: float, steps: int) -> dict[str, Any]:
    given: dict[str, Any] = {"optimizer": optimizer, "max_lr": learning_rate}
    if isinstance(arguments, Mapping) and not {"total_steps", "epochs", "steps_per_epoch"} & set(arguments):
        given["total_steps"] = steps
    return given
