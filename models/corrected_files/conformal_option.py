"""The option `conformal` of `correct`: the layer of each corrector, found by the hash of the corrector's file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_write
from data_pipeline.common.identity import sha256_of
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


def record_of(output: Path) -> Path:
    """Return the path of the record beside an output that was corrected with a layer."""
    return output.with_name(output.name + ".conformal.json")


def record_layers(output: Path, layers: Mapping[str, ConformalLayer]) -> None:
    """Write which layers moved the forecasts of `output`; without layers, remove the record of an older output."""
    if not layers:
        record_of(output).unlink(missing_ok=True)
        return
    found = {"format": 1, "kind": "applied conformal layers", "output_sha256": sha256_of(output)}
    with atomic_write(record_of(output), "w") as file:
        json.dump({**found, "layers": [layer.to_json() for layer in layers.values()]}, file, allow_nan=False)
        file.write("\n")


def recorded_correctors(output: Path) -> list[str]:
    """Return the SHA-256 of the correctors whose layers moved the forecasts of `output`.

    A record of an older file of the same name is ignored. Raises `InputError` for a damaged record.
    """
    path = record_of(output)
    try:
        found = json.loads(path.read_text("utf-8"))
        correctors = [str(layer["corrector"]) for layer in found["layers"]]
        recorded = str(found["output_sha256"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}); correct the forecast again") from None
    return correctors if recorded == sha256_of(output) else []


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
