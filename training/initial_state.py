"""The state of a corrector before the first training step.

`fit_corrector` fits all parameters that need no gradient steps. `load_initial_weights` takes the weights of an earlier
run, such as the first of two stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from data_pipeline.common.errors import InputError
from data_pipeline.common.identity import sha256_of
from data_pipeline.common.messages import warn
from data_pipeline.dates import Dates
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.tiers import Samples, Tiers
from data_pipeline.statistics.normalization import NormalizationData
from models.corrector import Corrector
from models.parallel.domain import Domain
from models.parallel.exchange import process_group
from models.parallel.mesh import Mesh
from models.provenance.training_dates import seen_dates, state_fits, stated_fits, trained_dates
from models.statistical.crossfit import CrossFitted

SAME = {"members": "number of members", "data": "files"}
"""Keys of the provenance that must be equal in both runs, with their names in the error. Weights trained on other dates
could be validated on their own training dates, and their normalisation would be of other data."""


def fit_corrector(
    corrector: Corrector,
    corrector_on: Callable[[Domain], Corrector],
    samples_on: Callable[[Domain], Samples],
    own: Tiers,
    budget: Budget,
    batch_size: int,
    mesh: Mesh,
    normalization: NormalizationData | None = None,
) -> None:
    """Fit the normalisation and the closed-form parameters of `corrector`, which is on this rank's tile.

    Ranks with the same tile share its rows for the fit, so that all data are read only once. If the model cannot be
    built on tiles that small, each rank reads its `own` samples. With a `normalization`, the normaliser reads no
    samples.
    """
    shared = None
    if mesh.data > 1:
        with suppress(InputError):
            shared = corrector_on(mesh.shared(corrector.grid))
    if shared is None:
        corrector.fit(own, batch_size, normalization)
    else:
        without_cache = replace(budget, memory_bytes=0, disk_bytes=0, disk_folder=None)
        with Tiers(samples_on(shared.domain), without_cache) as samples:
            shared.fit(samples, batch_size, normalization)
        copy_fit(corrector, shared)
    if mesh.everyone:
        for tensor in corrector.state_dict().values():
            dist.broadcast(tensor, 0, process_group(mesh.everyone))  # the same to the last bit
    for note in corrector.notes:
        warn(note)


def copy_fit(corrector: Corrector, other: Corrector) -> None:
    """Copy everything that `other`, the same corrector on other tiles, has fitted; all ranks call this together."""
    corrector.load_state_dict(other.state_dict())
    corrector.provenance, corrector.notes, corrector.envelope = other.provenance, other.notes, other.envelope
    for own, theirs in zip(corrector.modules(), other.modules(), strict=True):
        if isinstance(own, CrossFitted) and isinstance(theirs, CrossFitted):
            own.copy_from(theirs)


CORRECTOR_FILES = ("initial_weights", "from", "teacher")
"""Options of `train` that name the file of another corrector."""


def hash_corrector_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run, with the hash of each file of `CORRECTOR_FILES` beside its path.

    The options identify a run, and the same path may later hold other weights. Options that are null are left out.
    """
    optional = (*CORRECTOR_FILES, "teacher_weight")
    found = {name: value for name, value in options.items() if value is not None or name not in optional}
    for name in CORRECTOR_FILES:
        if (path := found.get(name)) is not None:
            if not Path(path).is_file():
                raise InputError(f"{name}: there is no corrector {path}; train it first")
            found[name] = f"{path} {sha256_of(path)[:16]}"
    return found


def warning_of_validation(path: str, provenance: Mapping[str, Any], validation: Dates) -> str:
    """Return a warning if the corrector in the file `path` was trained on a date of this run's validation, else ""."""
    if (day := trained_dates(provenance).first_shared(validation)) is None:
        return ""
    return (
        f"warning: {path} was trained on {day}, a validation date of this run; if both have the weather of the same "
        "world, the validation scores are too good"
    )


def load_initial_weights(corrector: Corrector, path: str | Path) -> Corrector:
    """Return `corrector` with all weights, normalisation and statistics of the corrector in the file.

    Both must have the same task, grid, model and data; an `InputError` says what differs. Options of the model that do
    not change its parameters, such as `trained_networks` of Deep Weather, may differ.
    """
    first = Corrector.load(path)
    if not any(True for _ in corrector.model.parameters()):
        raise InputError(f"{type(corrector.model).__name__} has no weights to load; leave out initial_weights")
    ours, theirs = (dict(each.task.to_json(), name="") for each in (corrector, first))
    different = [] if ours == theirs else ["task"]
    different += [] if corrector.grid == first.grid else ["grid"]
    ours, theirs = corrector.provenance, first.provenance
    different += [
        f"set of {words} dates"
        for name, words in (("train", "training"), ("val", "validation"))
        if seen_dates(ours, name) != seen_dates(theirs, name)
    ]
    different += [name for key, name in SAME.items() if theirs.get(key) != ours.get(key)]
    if different:
        raise InputError(
            f"initial_weights: {path} was trained with another {' and another '.join(different)}; train it again with "
            "the same options of data, task and max_members"
        )
    try:
        corrector.load_state_dict(first.state_dict())
    except RuntimeError:
        raise InputError(
            f"initial_weights: {path} holds another model, {first.spec}; give model the same options"
        ) from None
    corrector.envelope = first.envelope
    corrector.provenance["initial_weights"] = first.provenance.get("run")
    state_fits(corrector.provenance, stated_fits(theirs))
    return corrector
