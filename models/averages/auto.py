"""Auto: an average of simple corrections, weighted for each lead time by what they achieve in left-out years."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say
from data_pipeline.common.progress import watched
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.sample import Sample, select_channels, verifiable
from data_pipeline.task import Task
from models.averages.committee import weights_at
from models.averages.stacking import VALUES, Cases, collect_cases, weigh
from models.corrector import Corrector
from models.distribution import Distribution, Ensemble, Patched, average
from models.laws import with_laws
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.provenance.training_dates import state_fits, stated_fits
from models.statistical.cases import SHARED_CASES, FitReport, Passes, TooFewCasesError, lead_index, of_one_season
from models.statistical.crossfit import fold_index, year_folds
from models.statistical.emos_sharing import SAMPLE_CELLS

SAMPLE_BYTES, SAMPLE_CASES = 2**28, 2**17
"""Limits of the cells that choose the weights: bytes of their samples, and cells times forecasts times targets."""
BOOSTED_SECONDS = 3e-5
"""Seconds of a fit of boosted EMOS for a cell of a training forecast, on one thread, measured with 256 cells."""
MINUTES = 30.0
"""Default of the minutes of slow fits and networks."""
GAP_DAYS = 10
"""Days around a left-out part that are not used either, because weather has a memory."""


class Candidate(NamedTuple):
    """A correction that may take part in the average."""

    spec: dict[str, Any]
    fitted: bool = True
    """False: the part stays the moments of the raw ensemble."""
    seconds_per_case: float = 0.0
    """Time of a slow fit for a cell of a training forecast, as measured on one thread."""
    most_cases: float = math.inf
    """Cases that a fit uses at most."""
    one_season: float = 1
    """Fewest cells for a fit to cases of one season. Its forecasts of other seasons must not be far from all cases."""


BOOSTED = "models.statistical.boosted_emos.BoostedEMOS"
CANDIDATES: dict[str, Candidate] = {
    "raw moments": Candidate({"_target_": "models.statistical.emos.EMOS"}, fitted=False),
    "season": Candidate({"_target_": "models.statistical.season.Season"}, one_season=math.inf),
    "emos": Candidate({"_target_": "models.statistical.emos.EMOS"}),
    "boosted_emos": Candidate({"_target_": BOOSTED}, seconds_per_case=BOOSTED_SECONDS, one_season=math.inf),
    "boosted_emos, shared": Candidate(
        {"_target_": BOOSTED, "shared": True},
        seconds_per_case=BOOSTED_SECONDS,
        most_cases=SHARED_CASES,
        one_season=SAMPLE_CELLS[0],
    ),
}
"""The parts by name. All have one kind of distribution, so that averages of their parameters exist.

The first part is the forecast before a fit.
"""


class Auto(nn.Module):
    """The default: never worse than the raw ensemble, climatology or EMOS in left-out years, at any lead time.

    A fit leaves out each of `folds` parts of the training years once, fits all `CANDIDATES` to the others,
    and weighs their forecasts of the left-out years (`models.averages.stacking.weigh`). Cells that are drawn in
    proportion to their area stand for a large grid. Then the parts with a weight are fitted to all training samples.
    Where the raw ensemble is better than every average, judged by its fair CRPS, the forecast is the raw ensemble.

    `minutes` limits slow fits, such as boosted EMOS on a large grid, and the networks that a training adds
    (`training.auto`).
    """

    physical = any_grid = tiles = cellwise = True
    weights: Tensor
    """(K, L, T) of the parts."""
    raw: Tensor
    """(L, T) 1 where the forecast is the raw ensemble."""

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        minutes: float = MINUTES,
        folds: int = 5,
        parts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        self._task, self._domain, self._targets = task, Domain.of(grid), list(task.target_channels)
        check_minutes(minutes)
        check_integer("model.folds", folds, 2)
        self.minutes, self.folds = minutes, folds
        specs = parts or {name: candidate.spec for name, candidate in CANDIDATES.items()}
        if unknown := sorted({*specs} - {*CANDIDATES}):
            raise InputError(f"model.parts has no part {unknown[0]!r}; it has {', '.join(CANDIDATES)}")
        self.names, self.report = [*specs], FitReport()
        blank = torch.zeros(len(task.static_names), *grid.shape)  # until a fit, or until the state is loaded
        self.parts = nn.ModuleList(Corrector(task, grid, dict(spec), blank) for spec in specs.values())
        weights = torch.zeros(len(self.names), len(task.lead_times), len(task.targets))
        weights[0] = 1
        self.register_buffer("weights", weights)
        self.register_buffer("raw", torch.zeros(weights.shape[1:]))
        self._used, self._any_raw = [0], False

    def forward(self, sample: Sample) -> Distribution:
        """Return the average in physical units, or the raw ensemble."""
        weights = weights_at(self.weights, sample, self._task)
        found = average([self.parts[k](sample) for k in self._used], torch.stack([weights[k] for k in self._used]))
        if not self._any_raw:
            return found
        members = select_channels(sample.ensemble, self._targets, 2)
        known = select_channels(sample.mask, self._targets, 1)[:, None]
        raw = self.raw.index_select(0, lead_index(sample.lead_time, self._task))[..., None, None] > 0
        return Patched(~raw, found, Ensemble(members.masked_fill(~known, torch.nan).movedim(1, 0)))

    @staticmethod
    def completed(spec: Mapping[str, Any], task: Task) -> dict[str, Any]:
        """Return the description of the model with the complete descriptions of its parts."""
        parts = spec.get("parts") or {name: candidate.spec for name, candidate in CANDIDATES.items()}
        return dict(spec) | {"parts": {name: with_laws(part, task) for name, part in parts.items()}}

    @torch.no_grad()
    def fit(self, batches: Iterable[Sample]) -> None:
        """Choose the weights by forecasts of left-out years, then fit the parts that have one."""
        passes = Passes.of(batches)
        passes.check_lead_times(self._task)
        cells = math.prod(self._domain.own_shape)
        if len(passes.init_time) * cells * _sample_bytes(next(iter(passes)), self._task) <= SAMPLE_BYTES:
            passes = Passes.of(list(passes))  # each part reads them twice or more
        drawn = DrawnCells.of(passes, self._task, self._domain)
        self._choose(drawn.cross_fit(self._suitable(passes), self.folds))
        self._set_used()
        static = assemble(next(iter(passes)).static[0], self._domain)
        for part in self.parts:
            cast(Corrector, part).static.copy_(static)
        for k in self._used:
            fit_part(cast(Corrector, self.parts[k]), passes, CANDIDATES[self.names[k]].fitted)

    def _suitable(self, passes: Passes) -> dict[str, Candidate]:
        """Return the parts whose fit takes `minutes` at most and suits the seasons; say which are left out."""
        cells, valid = math.prod(self._domain.shape), passes.init_time + 3600 * passes.lead_time
        cases, one_season, found = len(valid) * len(self._targets) * cells, of_one_season(valid), {}
        for name, candidate in CANDIDATES.items():
            minutes = candidate.seconds_per_case * min(cases, candidate.most_cases) / 60
            if minutes > self.minutes:
                say(f"auto: {name} is left out: it would take about {minutes:.2g} of model.minutes={self.minutes:g}")
            elif one_season and cells < candidate.one_season:
                say(f"auto: {name} is left out: all training cases are of one season, and it would be wrong in others")
            else:
                found[name] = candidate
        return found

    def _choose(self, left_out: LeftOut) -> None:
        """Set `weights`, `raw` and `report`, and print what was tried and what won."""
        places = [self.names.index(name) for name in left_out.names]
        choices: list[dict[str, Any]] = []
        for t, target in enumerate(self._task.targets):
            for lead, weighing in enumerate(weigh(left_out.cases[t])):
                raw, own = left_out.raw[t][lead], weighing.crps
                self.weights[:, lead, t] = 0
                self.weights[places, lead, t] = torch.tensor(weighing.weights).to(self.weights)
                self.raw[lead, t] = raw < own
                shares = [f"{w:.2f} {name}" for w, name in zip(weighing.weights, left_out.names, strict=True) if w]
                single = {name: weighing.tried[str(k)] for k, name in enumerate(left_out.names)}
                scores = {"raw, fair": raw} | single | {"auto": min(raw, own)}
                choices.append({
                    "forecast": f"{target}, {self._task.lead_times[lead]} h ({target.units})",
                    "crps": {name: float(f"{crps:.4g}") for name, crps in scores.items()},
                    "chosen": "raw" if raw < own else " + ".join(shares),
                })  # fmt: skip
        self.report = FitReport(choices=choices)
        rows = [["CRPS in left-out years", *choices[0]["crps"], "auto is"]]
        rows += [[c["forecast"], *map("{:.4g}".format, c["crps"].values()), c["chosen"]] for c in choices]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        say("\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows))

    def _set_used(self) -> None:
        """Keep in Python which parts are computed, so that a GPU need not be asked in every step."""
        self._used = (self.weights.amax((1, 2)) > 0).nonzero()[:, 0].tolist()
        self._any_raw = bool(self.raw.any())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._set_used()


def without_unused(corrector: Corrector) -> Corrector:
    """Return a fitted corrector with the model `auto` without the parts that have no weight."""
    auto, spec = cast(Auto, corrector.model), corrector.spec
    used = auto._used
    names = {f"parts.{old}": f"parts.{new}" for new, old in enumerate(used)}
    parts = {auto.names[k]: spec["parts"][auto.names[k]] for k in used}

    def renamed(name: str) -> str | None:
        model, _, rest = name.partition("parts.")
        number, dot, rest = rest.partition(".")
        new = names.get(f"parts.{number}")
        return name if not number else new and f"{model}{new}{dot}{rest}"

    found = Corrector(
        corrector.task, corrector.domain, spec | {"parts": parts}, corrector.static, corrector.provenance,
        corrector.meanings, corrector.envelope,
    )  # fmt: skip
    state = {new: tensor for name, tensor in corrector.state_dict().items() if (new := renamed(name))}
    found.load_state_dict(state | {"model.weights": auto.weights[used]})
    days = stated_fits(corrector.provenance)
    found.provenance.pop("fits", None)
    state_fits(found.provenance, {new: dates for name, dates in days.items() if (new := renamed(name))})
    found.notes = corrector.notes
    return found.train(corrector.training)


def check_minutes(minutes: object) -> None:
    """Raise `InputError` unless `minutes` is a number that is not negative."""
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not minutes >= 0:
        raise InputError(f"model.minutes must be a number of minutes, 0 or more, got {minutes!r}")


def fit_part(part: Corrector, passes: Passes, fitted: bool) -> None:
    """Fit a part, or its normaliser only."""
    if fitted:
        part.fit_passes(passes)
    else:
        part.normalizer.fit(passes)


@dataclass(frozen=True)
class LeftOut:
    """Forecasts of left-out times by the parts `names`: `cases[target][lead]`, and the `raw` ensemble's fair CRPS."""

    names: list[str]
    cases: list[list[Cases]]
    raw: list[list[float]]


@dataclass(frozen=True)
class DrawnCells:
    """The training samples of some cells, as one batch in memory on `points`; `area` (n,) weights the cells."""

    task: Task
    points: Points
    area: Tensor
    samples: Sample

    @classmethod
    def of(cls, passes: Passes, task: Task, domain: Domain) -> DrawnCells:
        """Draw cells in proportion to their area, or take all, and read their samples; all ranks call this together."""
        grid, starts, (H, W) = domain.grid, len(passes.init_time), domain.shape
        size = starts * _sample_bytes(next(iter(passes)), task)
        count = min(SAMPLE_BYTES // size, SAMPLE_CASES // (starts * len(task.targets)))
        cells, area = torch.arange(H * W), torch.from_numpy(grid.weights)[:, None].expand(H, W).flatten()
        if (count := max(count, 1)) < H * W:
            cells = torch.multinomial(area, count, generator=torch.Generator().manual_seed(0)).sort().values
            area = torch.ones(count, dtype=torch.float64)
        index, longitudes = cells.numpy(), np.broadcast_to(grid.cell_longitudes, (H, W)).flatten()

        def drawn(values: Tensor) -> Tensor:
            return assemble(values, domain).flatten(-2)[..., cells, None]

        parts = [
            batch._replace(
                ensemble=drawn(batch.ensemble), mask=drawn(batch.mask.float()) > 0, static=drawn(batch.static),
                target=drawn(batch.target),
            )
            for batch in passes
        ]  # fmt: skip
        points = Points(tuple(np.asarray(grid.latitudes)[index // W]), tuple(longitudes[index]))
        return cls(task, points, area, Sample(*map(torch.cat, zip(*parts, strict=True))))

    @property
    def passes(self) -> Passes:
        """Passes over the samples in small batches."""
        return Passes.of([self.where(part) for part in torch.arange(len(self.samples.mask)).split(64)])

    def where(self, chosen: Tensor) -> Sample:
        """Return the samples that an index or mask chooses."""
        return Sample(*(values[chosen] for values in self.samples))

    def cross_fit(self, parts: Mapping[str, Candidate], count: int) -> LeftOut:
        """Return the forecasts of each of about `count` folds by parts that were fitted to the others.

        A part that cannot be fitted is left out, and a line says why.
        """
        static, folds = self.samples.static[0], self._folds(count)
        forecasts: dict[str, list[Distribution]] = {name: [] for name in parts}
        for held_out, others in watched(folds, "forecasts of left-out times: part of the training time"):
            passes = replace(self, samples=others).passes
            for name, part in parts.items():
                if name in forecasts:
                    corrector = Corrector(self.task, self.points, part.spec, static)
                    try:
                        fit_part(corrector, passes, part.fitted)
                        forecasts[name].append(corrector(held_out))
                    except TooFewCasesError as error:
                        del forecasts[name]
                        say(f"auto: {name} is left out: {error}")
        return self._left_out(forecasts, [held_out for held_out, _ in folds])

    def _folds(self, count: int) -> list[tuple[Sample, Sample]]:
        """Return the samples of each fold, and those of the others without the time near the fold.

        With one valid time only, the folds are groups of neighbouring cells, at which the truth is left out.
        """
        samples = self.samples
        valid = samples.init_time + 3600 * samples.lead_time
        if len(valid.unique()) == 1:
            order = torch.tensor(self.points.longitudes).argsort(stable=True).argsort()
            group = (order * count // len(order))[:, None]
            say(f"auto: all training samples have one valid time, so {count} groups of cells are left out in turn")
            return [(_without(samples, group != k), _without(samples, group == k)) for k in range(count)]
        fold, found = fold_index(valid, year_folds(self.passes, count)), []
        for k in fold.unique():
            first, last = valid[fold == k].aminmax()
            near = min(GAP_DAYS * 86400, int(last - first) // 4)
            found.append((self.where(fold == k), self.where((valid < first - near) | (valid > last + near))))
        return found

    def _left_out(self, forecasts: Mapping[str, Sequence[Distribution]], held_out: Sequence[Sample]) -> LeftOut:
        task, T, L = self.task, len(self.task.targets), len(self.task.lead_times)
        cases: list[list[list[Cases]]] = [[[] for _ in range(L)] for _ in range(T)]
        raw = torch.zeros(2, T, L, dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        for k, sample in enumerate(held_out):
            members = select_channels(sample.ensemble, task.target_channels, 2).movedim(1, 0)
            truth = verifiable(sample, task.target_channels)
            crps = Ensemble(members).crps(truth, fair=len(members) > 1).double() * self.area[:, None]
            for lead, hours in enumerate(task.lead_times):
                own = sample.lead_time == hours
                raw[0, :, lead] += crps[own].nansum((0, 2, 3))
                raw[1, :, lead] += (truth[own].isfinite() * self.area[:, None]).sum((0, 2, 3))
            fold = torch.full(sample.lead_time.shape, k)
            count = max(VALUES // len(self.samples.lead_time), 1) * L
            parts = [forecast[k] for forecast in forecasts.values()]
            collect_cases(cases, parts, sample, task, fold, self.area, count, generator)
        joined = [[Cases.joined(of_lead) for of_lead in of_target] for of_target in cases]
        return LeftOut([*forecasts], joined, (raw[0] / raw[1]).tolist())


def _sample_bytes(batch: Sample, task: Task) -> int:
    """Return the bytes of a cell of a sample."""
    return 4 * ((batch.ensemble.shape[1] + 1) * len(task.channels) + len(task.targets))


def _without(samples: Sample, cells: Tensor) -> Sample:
    """Return the samples without the truth of some cells, a mask (n, 1)."""
    return samples._replace(target=samples.target.masked_fill(cells, torch.nan))
