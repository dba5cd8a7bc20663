"""The fitted state: results of all fits before the first training step, kept in the run folder for a resumed run.

A fit reads all training data once or several times. A resumed run reads its result from `fitted.safetensors` instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from data_pipeline.common.files import atomic_write
from data_pipeline.common.identity import hash_of
from models.corrector import Corrector
from models.parallel.mesh import Mesh
from models.provenance.envelope import Envelope
from models.statistical.crossfit import CrossFitted

FITTED_FILE = "fitted.safetensors"
"""Name of the file in the run folder. It is removed when the run is finished."""
_FORMAT = 1
_STATE, _TABLE, _ENDS = "state.", "table.", "ends."


class FittedState:
    """The file `path` with the fitted state of the run `run`; a damaged file, or a file of another run, is ignored."""

    def __init__(self, path: Path, run: str) -> None:
        self._path, self._run = path, run

    def save(self, corrector: Corrector, mesh: Mesh) -> None:
        """Write everything that the fit of `corrector` found: weights, cross-fitted tables, envelope, provenance.

        All ranks call this together, because tables are kept by tiles and the file holds them for the whole globe.
        """
        tensors = {f"{_STATE}{name}": tensor for name, tensor in corrector.state_dict().items()}
        for name, module in _cross_fitted(corrector).items():
            if module.fitted:
                tensors |= {f"{_TABLE}{name}": module.whole_table(), f"{_ENDS}{name}": module.ends}
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        envelope = corrector.envelope
        description = {
            "format": _FORMAT, "run": self._run, "provenance": corrector.provenance, "notes": corrector.notes,
            "envelope": None if envelope is None else envelope.to_json(),
        }  # fmt: skip

        def write() -> None:
            text = json.dumps(description)
            # The library's function that writes files does not raise the OSError of a full disk.
            with atomic_write(self._path) as file:
                file.write(save(tensors, {"fitted": text, "checksum": _checksum(text, tensors)}))

        mesh.run_on_first(write)

    def restore(self, corrector: Corrector, mesh: Mesh) -> bool:
        """Load the state into an unfitted `corrector` on any tile; return False if there is no valid file.

        All ranks call this together.
        """
        if not mesh.run_on_first(self._is_valid):
            return False
        metadata, tensors = self._read()
        description: dict[str, Any] = json.loads(metadata["fitted"])
        corrector.load_state_dict(_named(_STATE, tensors))
        tables, ends = _named(_TABLE, tensors), _named(_ENDS, tensors)
        for name, module in _cross_fitted(corrector).items():
            if name in tables:
                module.set_whole(tables[name], ends[name])
        corrector.provenance, corrector.notes = description["provenance"], description["notes"]
        corrector.envelope = Envelope.from_json(description["envelope"])
        return True

    def remove(self) -> None:
        """Remove the file, if there is one."""
        self._path.unlink(missing_ok=True)

    def _is_valid(self) -> bool:
        try:
            metadata, tensors = self._read()
            description = json.loads(metadata["fitted"])
            ours = description.get("format") == _FORMAT and description.get("run") == self._run
            return ours and metadata["checksum"] == _checksum(metadata["fitted"], tensors)
        except (OSError, SafetensorError, ValueError, KeyError):
            return False

    def _read(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        with safe_open(self._path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _cross_fitted(corrector: Corrector) -> dict[str, CrossFitted]:
    return {name: module for name, module in corrector.named_modules() if isinstance(module, CrossFitted)}


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _checksum(description: str, tensors: Mapping[str, Tensor]) -> str:
    named = ((name, tensors[name].cpu().numpy().tobytes()) for name in sorted(tensors))
    return hash_of(description, *(part for pair in named for part in pair))
