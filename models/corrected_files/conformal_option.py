"""The option `conformal` of `correct`: the layer of each corrector, found by the hash of the corrector's file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data_pipeline.common.errors import InputError
from models.engines.engine import CorrectorDescription
from models.members.conformal import ConformalLayer


def conformal_layers(
    option: object, correctors: Sequence[CorrectorDescription]
) -> tuple[dict[str, ConformalLayer], list[str]]:
    """Return the layers by the SHA-256 of their correctors, and a sentence about each corrector that lacks one.

    The option is one path or a list of paths. Raises `InputError` for a layer that belongs to none of the `correctors`.
    """
    given = option if isinstance(option, list) else [] if option is None else [option]
    paths = [path for path in given if isinstance(path, str) and path]
    if len(paths) < len(given):
        raise InputError(f"conformal must be the path of conformal.json, or a list of paths, got {option!r}")
    if not paths:
        return {}, []
    layers: dict[str, ConformalLayer] = {}
    hashes = {corrector.sha256 for corrector in correctors}
    for path in paths:
        layer = ConformalLayer.load(Path(path).expanduser())
        if layer.corrector not in hashes:
            raise InputError(
                f"conformal={path} was made for another corrector (SHA-256 {layer.corrector[:12]}…); give the layer "
                "that deepweather monitor made with the corrector of this run"
            )
        if layer.corrector in layers:
            raise InputError(f"conformal names two layers of one corrector; leave out {path}")
        layers[layer.corrector] = layer
    return layers, [sentence for one in correctors for sentence in _lacking(one, layers.get(one.sha256))]


def _lacking(corrector: CorrectorDescription, layer: ConformalLayer | None) -> list[str]:
    """Return a list with a sentence about the forecasts of a corrector that no layer moves, or an empty list."""
    if layer is None:
        return [f"corrector {corrector.name} has no conformal layer: its forecasts are corrected without one"]
    task = corrector.task
    lacking = [
        f"{target} +{lead} h"
        for target in task.targets
        for lead in task.lead_times
        if (str(target), lead) not in layer.scores
    ]
    if not lacking:
        return []
    return [f"the conformal layer has no verified forecast of {', '.join(lacking)} yet, and does not move them"]
