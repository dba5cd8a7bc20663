"""Cross-fitting: in training, a sample gets the numbers that were fitted without the samples of its own year.

A fit is closer to its own cases than to new ones. A network that learns from its own cases trusts the fit too much
(Chernozhukov et al. 2018, doi:10.1111/ectj.12097, section 1). So each sample of the training years gets the fit to all
training samples outside its own fold. Evaluation and the corrector file use the fit to all training samples.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.sample import Sample
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.statistical.cases import Passes

SINGLE_YEAR_FOLDS = 8
"""Number of folds of a single training year: 46 days each, short enough to interpolate an annual cycle."""


def year_folds(passes: Passes, max_folds: int | None = None) -> Tensor:
    """Return the times (F - 1,) at which F folds of the training samples end, int64 seconds since 1970.

    A fold is a calendar year of valid time, or several successive years, so that there are `max_folds` at most. A
    single year is cut into `SINGLE_YEAR_FOLDS` of equal length.
    """
    valid = (passes.init_time + 3600 * passes.lead_time).numpy()
    years = np.unique(valid.astype("M8[s]").astype("M8[Y]"))
    if len(years) > 1:
        count = min(len(years), max_folds or len(years))
        first = years[[round(k * len(years) / count) for k in range(1, count)]]
        return torch.from_numpy(first.astype("M8[s]").astype(np.int64))
    return torch.linspace(int(valid.min()), int(valid.max()) + 1, SINGLE_YEAR_FOLDS + 1, dtype=torch.float64)[
        1:-1
    ].long()


def single_year_note(passes: Passes) -> str | None:
    """Return a note for the user if all samples are valid in one calendar year, so that no year can be held out."""
    valid = (passes.init_time + 3600 * passes.lead_time).numpy().astype("M8[s]").astype("M8[Y]")
    if len(years := np.unique(valid)) > 1:
        return None
    return (
        f"all training samples are valid in {years[0]}, so that no year can be held out: fits for training hold out "
        f"one of {SINGLE_YEAR_FOLDS} parts of that year instead"
    )


def fold_index(valid: Tensor, ends: Tensor) -> Tensor:
    """Return the fold (B,) of each valid time (B,), from the `ends` of all folds but the last."""
    return torch.searchsorted(ends, valid, right=True)


class CrossFitted(nn.Module):
    """Holds a `table` (F, ...) of numbers for each fold of the training samples, fitted to all other folds.

    The table is empty until `set`. It holds this rank's tile, or, without `per_cell`, numbers that all cells share. The
    table is used in training only: corrector files and checkpoints do not contain it, and a resumed run reads it from
    `fitted.safetensors` (`training.run.fitted_state`).
    """

    table: Tensor
    ends: Tensor

    def __init__(self, domain: Domain, per_cell: bool = True) -> None:
        super().__init__()
        self._domain, self._per_cell = domain, per_cell
        self.fitted = False
        self.register_buffer("table", torch.empty(0), persistent=False)
        self.register_buffer("ends", torch.empty(0, dtype=torch.int64), persistent=False)

    def set(self, table: Tensor, ends: Tensor) -> None:
        """Set the table of all folds, and the `ends` of the folds."""
        self.table, self.ends, self.fitted = table, ends, True

    def copy_from(self, other: CrossFitted) -> None:
        """Copy the table that was fitted on other tiles of the same globe; all ranks must call this together."""
        if other.fitted:
            self.set_whole(other.whole_table(), other.ends)

    def whole_table(self) -> Tensor:
        """Return the table of the whole globe; all ranks must call this together."""
        return assemble(self.table, self._domain) if self._per_cell else self.table

    def set_whole(self, table: Tensor, ends: Tensor) -> None:
        """Set this rank's tile from a table of the whole globe, and the `ends` of the folds."""
        self.set(self._domain.cut(table).clone() if self._per_cell else table, ends)

    def fold(self, sample: Sample) -> Tensor:
        """Return the fold (B,) in which each sample is valid."""
        return fold_index(sample.init_time + 3600 * sample.lead_time, self.ends)
