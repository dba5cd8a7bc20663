"""Fit: what a corrector can learn at once is learnt before the first step, by all ranks together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch.distributed as dist

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.tiers import Samples, Tiers
from models.corrector import Corrector
from models.parallel.domain import Domain
from models.parallel.group import named
from models.parallel.mesh import Mesh
from models.statistical.crossfit import CrossFitted


def fitted(
    domain: Domain,
    corrector_on: Callable[[Domain], Corrector],
    samples_on: Callable[[Domain], Samples],
    own: Tiers,
    budget: Budget,
    batch_size: int,
    mesh: Mesh,
) -> Corrector:
    """Return a corrector for the own tile that knows of the training years what can be learnt at once.

    Ranks with the same tile share its rows for this, so that everything is read but once, if the model can be built on
    so small tiles; else each of them reads its `own` samples.
    """
    corrector = corrector_on(domain)
    shared = None
    if mesh.data > 1:
        with suppress(InputError):
            shared = corrector_on(mesh.shared(domain.grid))
    if shared is None:
        corrector.fit(own, batch_size)
    else:
        without_cache = replace(budget, memory_bytes=0, disk_bytes=0, disk_folder=None)
        with Tiers(samples_on(shared.domain), without_cache) as samples:
            shared.fit(samples, batch_size)
        take_fit(corrector, shared)
    if mesh.everyone:
        for tensor in corrector.state_dict().values():
            dist.broadcast(tensor, 0, named(mesh.everyone))  # the same to the last bit
    for note in corrector.notes:
        mesh.say(note)
    return corrector


def take_fit(corrector: Corrector, other: Corrector) -> None:
    """Take all that the same corrector on other tiles has learnt at once; all ranks do so together."""
    corrector.load_state_dict(other.state_dict())
    corrector.provenance, corrector.notes = other.provenance, other.notes
    for own, theirs in zip(corrector.modules(), other.modules(), strict=True):
        if isinstance(own, CrossFitted) and isinstance(theirs, CrossFitted):
            own.take(theirs)
