"""The methods that make members of a distribution: the values of the members, and the template of their rank order.

In each cell, the k-th lowest value goes to the member whose field in the template is the k-th lowest there. So the
members get the template's dependence between places, lead times and variables. Comparisons of the methods: Lerch et
al. 2020, doi:10.5194/npg-27-349-2020, and `benchmarks/dependence.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from data_pipeline.protocols import Fields
from data_pipeline.task import Variable
from models.engines.forecast import RawForecast
from models.members.coupled_members import CellNames
from models.members.named_draws import normal_draws
from models.members.noise import noise_template
from models.members.past import Past
from models.provenance.noise import Noise

GAUSSIAN_STARTS = 20, 200
"""Past starts, at least and at most, whose analyses give the correlations of `gca`."""


@dataclass(frozen=True)
class Situation:
    """A forecast, and all that templates read beside it."""

    forecast: RawForecast
    names: CellNames
    count: int
    """Number of members."""
    past: Past | None = None
    current: Fields | None = None
    """The raw members of the targets in all forecasts of the input."""
    noise: Noise | None = None
    """The corrector's own."""
    targets: tuple[Variable, ...] = ()
    change: Callable[[int], np.ndarray] | None = None
    """Returns what `ecc-q` adds to the raw members (M, T, h, w) of this start at a lead time (hours)."""

    def analyses(self, starts: np.ndarray) -> np.ndarray:
        """Return the analyses (K, T, h, w) at the lead time of the forecast after past starts."""
        assert self.past is not None
        return np.stack([*self.past.read_analyses(starts, self.forecast.lead_time, self.names.domain)])


def schaake(situation: Situation) -> np.ndarray:
    """Return analyses after the past starts that are nearest in the day of the year.

    Clark et al. 2004, doi:10.1175/1525-7541(2004)005<0243:TSSAMF>2.0.CO;2
    """
    assert situation.past is not None
    return situation.analyses(situation.past.starts(situation.forecast.init_time, situation.count))


def simschaake(situation: Situation) -> np.ndarray:
    """Return analyses after the past starts whose forecasts are most similar to this one.

    Schefzik 2016, doi:10.1175/MWR-D-15-0227.1
    """
    assert situation.past is not None
    assert situation.current is not None
    start = situation.forecast.init_time
    return situation.analyses(situation.past.similar_starts(start, situation.count, situation.current))


def gca(situation: Situation) -> np.ndarray:
    """Return draws from a normal distribution with the covariances of past analyses (Gaussian copula).

    A draw is Σᵢ ξᵢ (xᵢ - x̄) over the analyses xᵢ after `GAUSSIAN_STARTS` past starts, with standard normal ξᵢ.
    Its covariance has their low rank, so no matrix over cells is needed; a factor does not change the order. The ξᵢ
    are the same in all cells, lead times and targets. Möller, Lenkoski & Thorarinsdottir 2013, doi:10.1002/qj.2009,
    give a member the quantile at the level of its draw; here, the draws order the quantiles of `ecc-q`.
    """
    past, start = situation.past, situation.forecast.init_time
    assert past is not None
    starts, names = past.starts(start, *GAUSSIAN_STARTS), situation.names
    member, seconds = np.arange(situation.count)[:, None], starts.astype(np.int64)
    weights = normal_draws(names.seed, (names.init_time, seconds, member))
    weights -= weights.mean(1, keepdims=True)
    template = np.zeros((situation.count, *situation.forecast.raw.shape[1:]))
    for analysis, own in zip(
        past.read_analyses(starts, situation.forecast.lead_time, names.domain), weights.T, strict=True
    ):
        template += own[:, None, None, None] * analysis
    return template


def decc(situation: Situation) -> np.ndarray:
    """Return raw members plus their changes by `ecc-q`, correlated between lead times like past errors (dual ECC).

    With the changes c of all lead times of a member in a cell, and the correlation R of past errors, the template is
    the raw member plus R^½ c. Ben Bouallègue et al. 2016, doi:10.1175/MWR-D-15-0403.1
    """
    past, change = situation.past, situation.change
    assert past is not None
    assert change is not None
    root = past.error_root(situation.names.domain)[past.lead_times.index(situation.forecast.lead_time)]
    changes = [change(lead) for lead in past.lead_times]
    template: np.ndarray = situation.forecast.raw[: len(changes[0])] + sum(
        own * each for own, each in zip(root, changes, strict=True)
    )
    return template


def noise(situation: Situation) -> np.ndarray:
    """Return noise with the dependence of the corrector's errors and the raw members' ranks; see `Noise`."""
    assert situation.noise is not None
    return noise_template(situation.noise, situation.forecast.raw, situation.targets, situation.names, situation.count)


@dataclass(frozen=True)
class MemberMethod:
    """How members are made."""

    values: Literal["levels", "random levels", "raw levels", "shifted"] = "levels"
    """Quantiles at `quantile_levels`, at random levels, at those of raw members, or raw members moved and scaled."""
    template: Callable[[Situation], np.ndarray] | Literal["raw"] | None = "raw"
    """Returns the template; `raw` for the raw members, None for no order."""
    reads: tuple[str, ...] = ()
    """Options that name the files that it reads."""
    compares: bool = False
    """Whether it compares forecasts at all lead times of a start."""
    fitted: bool = False
    """Whether it needs the noise that `train noise=true` has fitted to the corrector."""
    correlates: bool = False
    """Whether it needs the distributions at all lead times of a start."""


PAST = {"history": "past analyses", "reforecasts": "past forecasts"}
"""What the options name whose files methods read."""
METHODS = {
    "ecc-q": MemberMethod(),
    "ecc-r": MemberMethod("random levels"),
    "ecc-t": MemberMethod("raw levels"),
    "decc": MemberMethod(template=decc, reads=(*PAST,), correlates=True),
    "schaake": MemberMethod(template=schaake, reads=("history",)),
    "simschaake": MemberMethod(template=simschaake, reads=(*PAST,), compares=True),
    "gca": MemberMethod(template=gca, reads=("history",)),
    "noise": MemberMethod(template=noise, fitted=True),
    "member-by-member": MemberMethod("shifted"),
    "quantiles": MemberMethod(template=None),
}
"""All methods by the name that the option `members` gives them; see `models.members.members` for values."""
MEMBER_METHODS = tuple(METHODS)
READ_METHODS = {option: [name for name, method in METHODS.items() if option in method.reads] for option in PAST}
"""The methods that read the files of an option."""
