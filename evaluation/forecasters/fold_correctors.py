"""Correctors of cross-validation: each forecast is corrected by the only one that has not seen its date."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.dates import Dates
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from evaluation.scoring.scoring import Forecaster
from models.corrector import Corrector
from models.distribution import Distribution
from models.parallel.domain import Domain
from models.provenance.training_dates import SEEN, seen_dates, stated_fits


@dataclass(frozen=True)
class FoldCorrectors:
    """One corrector, or the correctors of all folds, and the dates that each of them has `seen` in its training."""

    correctors: tuple[Corrector, ...]
    seen: tuple[Dates, ...]

    @classmethod
    def of(cls, correctors: Sequence[Corrector]) -> FoldCorrectors:
        """Join correctors; their provenance has the dates of training and validation, and of the fits of all parts."""
        seen = []
        for corrector in correctors:
            found = [seen_dates(corrector.provenance, name) or Dates(()) for name in SEEN]
            found += stated_fits(corrector.provenance).values()
            seen.append(Dates(tuple(span for dates in found for span in dates.spans)))
        return cls(tuple(correctors), tuple(seen))

    @property
    def first(self) -> Corrector:
        """The first corrector; the correctors of all folds have the same model."""
        return self.correctors[0]

    def check(self, name: str, scored: Dates) -> None:
        """Raise an `InputError` unless exactly one of several correctors has not seen each of the scored dates."""
        if len(self.correctors) == 1:
            return
        covered = Dates(())
        for seen in self.seen:
            unseen = scored.without(seen)
            if shared := covered.first_shared(unseen):
                raise InputError(
                    f"correctors.{name}: several of its {len(self.correctors)} correctors have not seen {shared}: it "
                    "is not clear which of them corrects; give the correctors of one cross-validation, each once, and "
                    "split=held_out"
                )
            covered = Dates((*covered.spans, *unseen.spans))
        if left := scored.first_not_in(covered):
            raise InputError(
                f"correctors.{name}: each of its {len(self.correctors)} correctors has a part that was fitted on "
                f"{left}{self._hidden_fit(left)}; add the corrector of that fold, or score other dates"
            )

    def _hidden_fit(self, day: date) -> str:
        """Return, as text, a part that was fitted on a `day` outside its corrector's training and validation dates."""
        for number, corrector in enumerate(self.correctors, 1):
            splits = [seen_dates(corrector.provenance, name) or Dates(()) for name in SEEN]
            fits = stated_fits(corrector.provenance)
            hidden = [part for part, dates in fits.items() if dates.covers(Dates(((day, day),)))]
            if hidden and not any(dates.covers(Dates(((day, day),))) for dates in splits):
                return f" ({hidden[0]} of corrector {number})"
        return ""

    def choose(self, valid: np.ndarray) -> np.ndarray:
        """Return the position of the corrector of each forecast, by its valid time (datetime64)."""
        if len(self.correctors) == 1:
            return np.zeros(valid.shape, int)
        return np.argmax([~seen.contains(valid) for seen in self.seen], axis=0)

    def on(self, domain: Domain) -> FoldCorrectors:
        """Return the correctors on one tile."""
        return FoldCorrectors(tuple(corrector.on(domain) for corrector in self.correctors), self.seen)

    def bind(self, task: Task, device: torch.device) -> Forecaster:
        """Return a function that corrects batches of `task` on `device`; each batch belongs to one corrector."""
        bound = [corrector.to(device).bind(task) for corrector in self.correctors]

        def forecast(batch: Sample) -> Distribution:
            seconds = (batch.init_time + 3600 * batch.lead_time).cpu().numpy()
            (chosen,) = np.unique(self.choose(seconds.astype("datetime64[s]")))
            return bound[chosen](batch)

        return forecast if len(bound) > 1 else bound[0]


def batch_groups(models: Collection[FoldCorrectors], valid: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Return a number for each forecast.

    It is equal for forecasts that have the same corrector in every model, and the same number in `present`, which
    stands for the groups of members that they have.
    """
    chosen = np.stack([present, *(model.choose(valid) for model in models)])
    groups: np.ndarray = np.unique(chosen, axis=1, return_inverse=True)[1].reshape(-1)
    return groups
