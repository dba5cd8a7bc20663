"""Spatial mixture of experts (Dryden & Hoefler 2022, arXiv:2211.13491): a gate chooses convolutions in every cell.

layer = SpatialMixture(grid, inputs, outputs, experts)       # in place of Conv2d(grid, inputs, outputs)
loss = score + loss_terms(model) / forecasts                      # the gates learn through this term
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from data_pipeline.common.checks import (
    check_between,
    check_boolean,
    check_choice,
    check_fraction,
    check_integer,
    construct,
)
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.layers.convolution import Conv2d
from models.layers.gate import LatentGate, SphereGate
from models.layers.loss_term import LossTermLayer
from models.parallel.domain import Domain
from models.parallel.quantile import quantile

RIGHT, UNDAMPED = 1e-5, 1e-3
"""A choice is right up to an error of the quantile plus `RIGHT`, and undamped up to the quantile plus `UNDAMPED`."""


@dataclass(frozen=True)
class Routing:
    """How a gate learns its choices from the gradient at the mixture's output, the error signal.

    A choice is wrong where the error is above the `quantile` of all errors of the same forecast. With `classify`, the
    gate learns to avoid wrong choices. The gradient of a wrongly chosen expert is multiplied by `damping`, because the
    expert may suit other cells; 1 leaves it as it is.
    """

    quantile: float = 0.3
    damping: float = 0.0
    classify: bool = True

    def __post_init__(self) -> None:
        check_between("model.routing.quantile", self.quantile, 0, 1)
        check_fraction("model.routing.damping", self.damping)
        if self.damping == 1 and not self.classify:
            raise InputError("model.routing with damping 1 and classify false does nothing; set model.routing to null")


@dataclass(frozen=True)
class Mixing:
    """Options that turn the convolutions of a network into mixtures: `experts` per output, chosen by a `gate`.

    The gate is `latent`, `sphere` (with spherical harmonics up to `degree`), or `computed` from the layer's input by a
    convolution. It learns by `Routing` with the quantile `routing_quantile`; None: without routing (`SpatialMixture`).
    With `blend`, `experts` whole convolutions are blended in place of a choice (`SpatialBlend`).
    """

    experts: int = 2
    gate: str = "latent"
    degree: int | None = None
    blend: bool = False
    routing_quantile: float | None = None

    def __post_init__(self) -> None:
        check_integer("model.mixture.experts", self.experts, 1 if self.routing_quantile is None else 2)
        check_boolean("model.mixture.blend", self.blend)
        if self.routing_quantile is not None:
            check_between("model.mixture.routing_quantile", self.routing_quantile, 0, 1)
            if self.blend:
                raise InputError("model.mixture.routing_quantile is for chosen experts; set it to null with blend=true")
        check_choice("model.mixture.gate", self.gate, ("latent", "sphere", "computed"))
        if (self.gate == "sphere") != (self.degree is not None):
            raise InputError(f"model.mixture.degree belongs to gate sphere, got {self.degree!r} with {self.gate}")

    @classmethod
    def of(cls, options: dict[str, Any] | None) -> Callable[..., nn.Module]:
        """Return a factory of layers, called with grid, inputs and outputs: `Conv2d` where there are no options."""
        return Conv2d if options is None else construct("model.mixture", cls, options)

    def __call__(
        self, grid: Grid | Domain, inputs: int, outputs: int, parity: Sequence[int] = ()
    ) -> SpatialMixture | SpatialBlend:
        """Return a mixture in place of a convolution."""
        chosen, experts = (1, self.experts) if self.blend else (outputs, self.experts * outputs)
        gate: nn.Module
        if self.gate == "latent":
            gate = LatentGate(grid, chosen, experts)
        elif self.degree is not None:
            gate = SphereGate(grid, chosen, experts, self.degree)
        else:
            gate = Conv2d(grid, inputs, experts, parity=parity)
        if self.blend:
            return SpatialBlend(grid, inputs, outputs, experts, gate, parity)
        routing = None if self.routing_quantile is None else Routing(self.routing_quantile)
        return SpatialMixture(grid, inputs, outputs, experts, gate=gate, routing=routing, parity=parity)


class SpatialMixture(LossTermLayer):
    """E convolutions of one output each, the experts. A gate chooses k in every cell; channel j is the j-th choice.

    The `gate` is a module that returns (B or 1, E, H, W), by default one learnt number per expert and cell. In every
    cell the k experts with the largest values are chosen, the largest first. With `scale_by_gate`, the output of an
    expert is multiplied by its gate value. How the gate learns:

    - With `routing`, by classification of the error signal at the output of this layer, at any depth of a network. Its
      gradient is the gradient of the cross-entropy with labels 1 for a right choice, 0 for a wrong choice, and
      (wrong choices in the cell) / (E - k) for the experts that were not chosen. This gradient reaches the gate alone,
      not the layers below. It is the gradient of the layer's loss term, whose value is zero.
    - Without `routing`, by the derivative of the product with the experts' outputs, or, without `scale_by_gate`, as if
      gate and output were added (straight-through estimator).
    """

    def __init__(
        self,
        grid: Grid | Domain,
        inputs: int,
        outputs: int,
        experts: int,
        gate: nn.Module | None = None,
        scale_by_gate: bool = False,
        routing: Routing | None = Routing(),
        beyond_zero: bool = False,
        parity: Sequence[int] = (),
    ) -> None:
        super().__init__()
        # Routing needs at least one expert that is not chosen.
        check_integer("model.experts", experts, outputs + (routing is not None))
        self.outputs, self.scale_by_gate, self.routing = outputs, scale_by_gate, routing
        self.out = Domain.of(grid)
        self.experts = Conv2d(grid, inputs, experts, beyond_zero=beyond_zero, parity=parity)
        self.experts.register_parameter("bias", None)
        nn.init.kaiming_uniform_(self.experts.weight, nonlinearity="relu")
        self.gate = LatentGate(grid, outputs, experts) if gate is None else gate

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H, W)."""
        rules = self.routing if self.training else None
        preference = self.gate(x.detach() if rules and rules.classify else x)
        outputs = self.experts(x)
        if preference.ndim != 4 or preference.shape[1:] != outputs.shape[1:]:
            raise ValueError(f"the gate returned {tuple(preference.shape)} for experts of {tuple(outputs.shape)}")
        y, term = _Choice.apply(outputs, preference, self.outputs, self.scale_by_gate, rules, self.out)
        self.term = term if rules else None
        return y


class SpatialBlend(nn.Module):
    """Convolutions that are blended in each cell by the softmax of a `gate`: Σ_e softmax(g)_e (W_e * x + b_e).

    Without a choice the output does not jump between cells, and every cell trains all experts (Jacobs et al. 1991,
    doi:10.1162/neco.1991.3.1.79), which helps where training forecasts are few. Initial weights are almost equal.
    """

    def __init__(
        self, grid: Grid | Domain, inputs: int, outputs: int, experts: int, gate: nn.Module, parity: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.out, self.gate = Domain.of(grid), gate
        self.experts = Conv2d(grid, inputs, experts * outputs, parity=parity)
        self._count = experts
        with torch.no_grad():
            for parameter in gate.parameters():
                parameter.mul_(0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H, W)."""
        weight = self.gate(x).softmax(1)[:, :, None]
        return (self.experts(x).unflatten(1, (self._count, -1)) * weight).sum(1)


class _Choice(torch.autograd.Function):
    """Maps experts (B, E, H, W) and gate (B or 1, E, H, W) to chosen outputs (B, k, H, W) and the loss term, zero.

    The gradient of this zero is the weight w of a forecast in the loss. The error of a choice is |g| n / 2w for the
    gradient g of its output and n outputs per forecast: for a mean squared error, the absolute error of the output.
    """

    @staticmethod
    def forward(
        ctx: Any, experts: Tensor, gate: Tensor, count: int, scale_by_gate: bool, rules: Routing | None, domain: Domain
    ) -> tuple[Tensor, Tensor]:
        preference, choice = gate.topk(count, 1)
        chosen = experts.gather(1, choice.expand(len(experts), -1, -1, -1))
        ctx.kind, ctx.shape = (scale_by_gate, rules, domain), experts.shape
        ctx.set_materialize_grads(False)
        # Choices take two bytes in place of eight.
        ctx.save_for_backward(gate, choice.short(), *((chosen, preference) if scale_by_gate else ()))
        zero = experts.new_zeros((), dtype=torch.promote_types(experts.dtype, torch.float32))
        return chosen * preference.to(chosen) if scale_by_gate else chosen, zero

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, error: Tensor | None, weight: Tensor | None) -> tuple[Tensor | None, ...]:
        gate, choice, *factors = ctx.saved_tensors
        scale_by_gate, rules, domain = ctx.kind
        if error is None:
            return (None,) * 6
        B, E, *_ = ctx.shape
        choice = choice.long()
        # Without routing, this is the derivative by the gate value of each choice.
        to_choice = error * factors[0] if scale_by_gate else error
        if rules:
            if weight is None:
                raise RuntimeError(
                    "the loss lacks the routing of a mixture of experts; add loss_terms(model) / forecasts"
                )
            # A forecast of weight 0 has a gradient of 0, and so no errors.
            size = _errors(to_choice, weight.clamp(min=torch.finfo(weight.dtype).tiny), domain)
            limit = quantile(size, rules.quantile, domain)[:, None, None, None]
            right = (size <= limit + RIGHT).to(gate)
            error = error * (size <= limit + UNDAMPED).to(error).clamp(min=rules.damping)
        signal = error * factors[1].to(error) if scale_by_gate else error
        to_experts = signal.new_zeros(ctx.shape).scatter_(1, choice.expand(B, -1, -1, -1), signal)
        # A gate that does not depend on the forecast makes one choice for the whole batch, so its gradient is a sum
        # over the batch.
        together = B if len(gate) < B else 1
        evidence = (right if rules and rules.classify else to_choice).reshape(together, -1, *error.shape[1:]).sum(0)
        if rules and rules.classify:
            others = (together * evidence.shape[1] - evidence.sum(1, keepdim=True)) / (E - evidence.shape[1])
            labels = others.expand(gate.shape).scatter(1, choice, evidence)
            to_gate = (together * gate.sigmoid() - labels) * (weight / (E * domain.shape[0] * domain.shape[1]))
        else:
            to_gate = torch.zeros_like(gate, dtype=evidence.dtype).scatter_(1, choice, evidence)
        return to_experts, to_gate.to(gate), None, None, None, None


def _errors(signal: Tensor, weight: Tensor, domain: Domain) -> Tensor:
    """Return the errors of choices from the error signal (B, k, H, W) of forecasts that have `weight` in the loss."""
    outputs = signal.shape[1] * domain.shape[0] * domain.shape[1]
    return (signal.to(torch.promote_types(signal.dtype, torch.float32)).abs() * (outputs / 2 / weight)).float()
