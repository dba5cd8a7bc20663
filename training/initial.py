"""Initial weights: a run that begins with the weights of an earlier one, such as the second stage of two."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.common.errors import InputError
from models.corrector import Corrector

SAME = {
    "train_years": "training years", "val_years": "validation years", "members": "number of members", "data": "files",
}  # fmt: skip
"""What both runs must have in common, by the key of the provenance. Weights that have seen other years would be scored
on years that they know, and their normalisation would be that of other data."""


def identified(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run; the file of `initial_weights` is identified by its content, not only by its path."""
    path, others = options["initial_weights"], {k: v for k, v in options.items() if k != "initial_weights"}
    if path is None:
        return others
    if not Path(path).is_file():
        raise InputError(f"there is no corrector {path}, with whose weights to begin; train it first")
    return others | {"initial_weights": f"{path} {hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]}"}


def begun(corrector: Corrector, path: str | Path) -> Corrector:
    """Return `corrector` with all weights, normalisation and statistics of the corrector in the file.

    It must be of the same task, grid, model and data, or an `InputError` says what differs. Options of the model that
    do not change its parameters, such as `trained_networks` of Deep Weather, may differ.
    """
    first = Corrector.load(path)
    if not any(True for _ in corrector.model.parameters()):
        raise InputError(f"{type(corrector.model).__name__} has no weights to begin with; leave out initial_weights")
    ours, theirs = (dict(each.task.to_json(), name="") for each in (corrector, first))
    different = [] if ours == theirs else ["task"]
    different += [] if corrector.grid == first.grid else ["grid"]
    different += [name for key, name in SAME.items() if first.provenance.get(key) != corrector.provenance.get(key)]
    if different:
        raise InputError(
            f"initial_weights: {path} was trained with another {' and another '.join(different)}; train it again with "
            "the same options of data, task and members"
        )
    try:
        corrector.load_state_dict(first.state_dict())
    except RuntimeError:
        raise InputError(
            f"initial_weights: {path} holds another model, {first.spec}; give model the same options"
        ) from None
    corrector.provenance["initial_weights"] = first.provenance.get("run")
    return corrector
