"""Which expert the gates of a mixture choose in each cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from evaluation.report.shown_data import ExpertMap
from models.layers.mixture import SpatialBlend, SpatialMixture


def first_choices(network: nn.Module, forward: Callable[[], object], shape: tuple[int, ...]) -> ExpertMap | None:
    """Return the first choice of the last mixture of experts in all cells; None if `network` has none.

    `forward` runs the network once, on fields of `shape` (H, W); mixtures on other grids inside the network are left
    out.
    """
    mixtures: dict[str, SpatialMixture | SpatialBlend] = {
        name: layer for name, layer in network.named_modules() if isinstance(layer, SpatialMixture | SpatialBlend)
    }
    if not mixtures:
        return None
    with _gates(mixtures) as found:
        forward()
    whole = {name: gate for name, gate in found.items() if tuple(gate.shape[-2:]) == shape}
    if not whole:
        return None
    name, gate = list(whole.items())[-1]
    return ExpertMap(name or "the network", gate.shape[1], gate[0].argmax(0).float().cpu().numpy())


@contextmanager
def _gates(mixtures: Mapping[str, SpatialMixture | SpatialBlend]) -> Iterator[dict[str, Tensor]]:
    """Collect the outputs (B or 1, E, H, W) of the gates of mixtures, in the order of the forward pass."""
    found: dict[str, Tensor] = {}

    def keeper(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _module, _inputs, output: found.__setitem__(name, output)

    hooks = [layer.gate.register_forward_hook(keeper(name)) for name, layer in mixtures.items()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
