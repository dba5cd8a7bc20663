"""The verb `combine`: several correctors in, one that forecasts what they say on average out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from conf import plain, verb
from data_pipeline.errors import InputError
from data_pipeline.sample import Sample
from models.committee import Committee
from models.corrector import Corrector


@verb("combine")
def main(cfg: DictConfig) -> None:
    """Read, check, write, say what was done."""
    paths = plain(cfg)["correctors"]
    if not isinstance(paths, list) or len(paths) < 2 or not all(isinstance(path, str) for path in paths):
        raise InputError(f"correctors must be a list of two files or more, [A, B, ...], got {paths!r}")
    combined([Path(path) for path in paths]).save(cfg.output)
    print(f"wrote {cfg.output}, a committee of {len(paths)}")


def combined(paths: Sequence[Path]) -> Corrector:
    """Return the committee of the correctors of these files, which must be of one task, grid, and years."""
    correctors = [Corrector.load(path) for path in paths]
    first = correctors[0]
    for path, other in zip(paths, correctors, strict=True):
        for name, same in (
            ("task", other.task.to_json() | {"name": ""} == first.task.to_json() | {"name": ""}),
            ("grid", other.grid == first.grid),
            ("years", _years(other) == _years(first)),
        ):
            if not same:
                raise InputError(f"{path} has another {name} than {paths[0]}; combine correctors of one and the same")
    spec = {"_target_": "models.committee.Committee", "specs": [corrector.spec for corrector in correctors]}
    provenance = {key: first.provenance[key] for key in first.provenance if key != "run"}
    provenance["runs"] = [corrector.provenance.get("run") for corrector in correctors]
    committee = Corrector(first.task, first.grid, spec, first.static, provenance)
    assert isinstance(committee.model, Committee)
    for own, corrector in zip(committee.model.correctors, correctors, strict=True):
        own.load_state_dict(corrector.state_dict())
    committee.eval()
    _try(committee)
    return committee


def _years(corrector: Corrector) -> list[Any]:
    return [corrector.provenance.get(key) for key in ("train_years", "val_years")]


@torch.no_grad()
def _try(corrector: Corrector) -> None:
    """Correct a forecast of nothing, by which kinds of distributions meet that cannot be averaged."""
    task, shape = corrector.task, corrector.grid.shape
    ensemble = torch.zeros(1, 2, len(task.channels), *shape)
    corrector(
        Sample(
            ensemble,
            torch.zeros(1, len(task.channels), *shape, dtype=torch.bool),
            corrector.static[None],
            torch.zeros(1, len(task.targets), *shape),
            torch.zeros(1, dtype=torch.int64),
            torch.tensor(task.lead_times[:1]),
        )
    )


if __name__ == "__main__":
    main()
