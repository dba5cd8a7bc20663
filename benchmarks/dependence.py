"""Energy and variogram scores of all methods that make members, in a simulation where the truth is known.

Setting 1 of Lerch et al. 2020 (doi:10.5194/npg-27-349-2020): observations are normal with mean 0, variance 1 and
correlation ρ₀^|i - j| between five values, here the lead times of a start. The 50 members have mean 1, variance 1 and
correlation ρ^|i - j|. EMOS is fitted to 500 starts in each repetition, and the quantiles are those of the paper. Where
ρ = ρ₀, the raw members have the right dependence, else a wrong one.

Printed are, for each method, the mean scores over all repetitions, their differences from `ecc-q` in per cent with the
standard error over repetitions, and the share of repetitions in which the Diebold-Mariano test over starts finds the
method better (+) or worse (-) than `ecc-q` at the level of 5 %. `gca, drawn` is the method of the paper, whose values
are drawn, too; `raw` are the members before the correction.

With `--cost`, printed are the seconds that each method takes for a forecast on half a degree, and the
fields that it reads beside the forecast, for 2 lead times and the past of 60 starts.

With `--twin FOLDER`, printed are differences between methods in the twin experiment of this folder, for members after
EMOS of three targets at two lead times: energy and variogram scores over tiles of 10 x 10 cells, over lead times and
over targets, and the CRPS of the mean and of the maximum over 30 random regions of 50 cells, for 10 and 50 members. All
differences have 95 % intervals over the starts of two years.

    python -m benchmarks.dependence [--json] [--repetitions 100] [--starts 200] [--cost [--members 10]] [--twin FOLDER]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from benchmarks.common import HALF_DEGREE, command_line, elapsed, report
from data_pipeline.archive import Archive
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import Grid, unit_vectors
from data_pipeline.protocols import Fields, Window
from data_pipeline.sample import Sample
from data_pipeline.split import Split
from data_pipeline.task import Task, Variable
from evaluation.kernels.vector_scores import vector_scores
from models.corrector import Corrector
from models.distribution import Normal
from models.engines.forecast import RawForecast
from models.engines.torch_engine import TorchPrediction
from models.members.coupled_members import CellNames
from models.members.coupling import written_members
from models.members.members import change_of_ecc_q, corrected_members
from models.members.methods import GAUSSIAN_STARTS, METHODS, Situation, gca
from models.members.options import CorrectionOptions
from models.members.past import Past
from models.parallel.domain import Domain
from models.provenance.noise import Noise
from training.noise_fit import ERRORS, fit_noise

D, M, TRAINING = 5, 50, 500
LEADS, VARIABLES = tuple(range(1, D + 1)), (Variable.parse("10u"),)
TRUE = 0.5
CORRELATIONS = (0.1, 0.25, 0.5, 0.75, 0.9)
"""ρ of the members; ρ₀ of the observations is `TRUE`."""
DRAWN, RAW = "gca, drawn", "raw"


class Numbers:
    """A `FieldReader` of arrays."""

    def __init__(self, grid: Grid, values: np.ndarray) -> None:
        self.grid, self._values = grid, values

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Copy fields."""
        out[...] = self._values[wanted][..., window[0], :][..., window[1]]


def fields_of(grid: Grid, starts: np.ndarray, leads: tuple[int, ...], values: np.ndarray) -> Fields:
    """Return `Fields` of one variable with the values (starts, leads, members, repetitions)."""
    cells = np.arange(values[..., 0].size).reshape(*values.shape[:3], 1)
    reader = Numbers(grid, values.reshape(-1, 1, values.shape[-1]))
    return Fields(reader, VARIABLES, starts, leads, tuple(range(values.shape[2])), (), cells)


def draws(rng: np.random.Generator, correlation: float, *shape: int) -> np.ndarray:
    """Return standard normal values (shape[0], D, *shape[1:]) with the correlation ρ^|i - j| along the second axis."""
    apart = abs(np.subtract.outer(np.arange(D), np.arange(D)))
    root = np.linalg.cholesky(correlation**apart)
    return np.einsum("ij,nj...->ni...", root, rng.normal(size=(shape[0], D, *shape[1:])))


def fit(mean: np.ndarray, variance: np.ndarray, truth: np.ndarray) -> Callable[[np.ndarray, np.ndarray], Normal]:
    """Return EMOS N(a + b mean, c² + d² variance), fitted to the CRPS over the first axis, for each other place."""
    coefficients = torch.ones((4, *truth.shape[1:]), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([coefficients], max_iter=300, line_search_fn="strong_wolfe")
    given = [torch.from_numpy(one) for one in (mean, variance, truth)]

    def forecast(mean: torch.Tensor, variance: torch.Tensor) -> Normal:
        a, b, c, d = coefficients
        return Normal(a + b * mean, (c**2 + d**2 * variance).sqrt())

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        found: torch.Tensor = forecast(*given[:2]).crps(given[2]).mean(0).sum()
        found.backward()
        return found

    optimizer.step(loss)
    coefficients.requires_grad_(False)
    return lambda *both: forecast(*map(torch.from_numpy, both))


class Simulation:
    """Starts of `repetitions` cells with the correlation ρ of the members."""

    def __init__(self, correlation: float, repetitions: int, starts: int, seed: int = 0) -> None:
        rng, self.grid = np.random.default_rng(seed), Grid([0.0], np.linspace(0, 300, repetitions).tolist())
        years = np.arange("1950", "1960", dtype="datetime64[Y]").astype("datetime64[D]")
        past = (years[:, None] + np.arange(TRAINING // len(years))).ravel().astype("datetime64[s]")
        days = (np.datetime64("2000", "Y") + np.arange(starts)).astype("datetime64[D]") + np.arange(starts) % 50
        self.starts, self.domain = days.astype("datetime64[s]"), Domain.of(self.grid)
        truth = draws(rng, TRUE, TRAINING + starts, repetitions)
        ensemble = 1 + draws(rng, correlation, TRAINING + starts, M, repetitions)
        emos = fit(ensemble[:TRAINING].mean(2), ensemble[:TRAINING].var(2, ddof=1), truth[:TRAINING])
        self.truth, self.ensemble = truth[TRAINING:], ensemble[TRAINING:]
        self.emos = emos(self.ensemble.mean(2), self.ensemble.var(2, ddof=1))
        valid = (past[:, None] + np.array(LEADS, "timedelta64[h]")).ravel()
        analyses = fields_of(self.grid, valid, (0,), truth[:TRAINING].reshape(-1, 1, 1, repetitions))
        self.past = Past(analyses, LEADS, "the past", fields_of(self.grid, past, LEADS, ensemble[:TRAINING]))
        self.current = fields_of(self.grid, self.starts, LEADS, self.ensemble)

    def members(self, method: str, start: int) -> np.ndarray:
        """Return the members (M, D, repetitions) of a start."""
        if method == RAW:
            return self.ensemble[start].swapaxes(0, 1)
        return np.stack(
            [self._drawn(start, lead) if method == DRAWN else self._made(method, start, lead) for lead in LEADS], 1
        )

    def _made(self, method: str, start: int, lead: int) -> np.ndarray:
        """Return the members that `correct` makes, (M, repetitions), with the levels of the paper."""
        options = CorrectionOptions("weibull" if METHODS[method].values == "levels" else "hazen", members=method)

        def made(make: Callable[..., np.ndarray], at: int, *rest: object) -> np.ndarray:
            predicted, raw = self._forecast(start, at)
            return make(predicted, raw, VARIABLES, raw.mask, self.domain, options, *rest)

        change = partial(made, change_of_ecc_q)
        return made(corrected_members, lead, self.past, self.current, change)[:, 0, 0]

    def _drawn(self, start: int, lead: int) -> np.ndarray:
        """Return quantiles at the levels of the draws of `gca`, (M, repetitions)."""
        predicted, raw = self._forecast(start, lead)
        names = CellNames(0, int(raw.init_time.astype(np.int64)), lead, self.domain)
        analyses = [*self.past.read_analyses(self.past.starts(raw.init_time, *GAUSSIAN_STARTS), lead, self.domain)]
        template = gca(Situation(raw, names, M, self.past)) / (np.std(analyses, 0) * np.sqrt(len(analyses)))
        return (predicted.mean() + predicted.std() * template)[:, 0, 0]

    def _forecast(self, start: int, lead: int) -> tuple[TorchPrediction, RawForecast]:
        """Return a corrected forecast and its raw members."""
        mu, sigma = (one[start, lead - 1][None, None, None] for one in (self.emos.mu, self.emos.sigma))
        raw, mask = self.ensemble[start, lead - 1, :, None, None], np.ones((1, *self.grid.shape), bool)
        nothing = np.empty((M, 0, *self.grid.shape), np.float32)
        own = RawForecast(nothing, mask, raw, self.starts[start], lead, self.current.numbers)
        return TorchPrediction(Normal(mu, sigma)), own

    def scores(self, method: str) -> np.ndarray:
        """Return the energy and the variogram score (2, starts, repetitions)."""
        weights = (1 - np.eye(D)) / (D * (D - 1))
        found = [
            vector_scores(self.members(method, start), self.truth[start], weights) for start in range(len(self.starts))
        ]
        return np.stack(found, 1)[[0, 2]]


class Counted:
    """A `FieldReader` of 40 random fields, which counts the fields that it reads."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.count = grid, 0
        self._values = np.random.default_rng(0).normal(size=(40, *grid.shape))

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Copy fields."""
        self.count += wanted.size
        for place in np.ndindex(wanted.shape):
            out[place] = self._values[wanted[place] % 40][window]


def print_costs(members: int = 10, grid: Grid = HALF_DEGREE, past_starts: int = 60) -> dict[str, float]:
    """Print seconds and fields read of each method; return the seconds divided by the seconds of `ecc-q`."""
    domain, leads, start = Domain.of(grid), (24, 48), np.datetime64("2020-01-01", "s")
    days = (
        np.arange("1950", "1980", dtype="datetime64[Y]").astype("datetime64[s]")[:, None] + np.array([0, 345_600])
    ).ravel()
    reader, shape = Counted(grid), (members, 1, *grid.shape)

    def fields(starts: np.ndarray, at: tuple[int, ...], count: int) -> Fields:
        cells = np.arange(len(starts) * len(at) * count).reshape(len(starts), len(at), count, 1)
        return Fields(reader, VARIABLES, starts, at, tuple(range(count)), (), cells)

    valid = np.unique(days[:past_starts, None] + np.array(leads, "timedelta64[h]"))
    past = partial(Past, fields(valid, (0,), 1), leads, "the past", fields(days[:past_starts], leads, members))
    raw, normal = np.random.default_rng(1).normal(size=shape), torch.zeros(shape[1:])[None]
    forecasts = {
        lead: RawForecast(raw[:, :0], np.ones(shape[1:], bool), raw, start, lead, tuple(range(members)))
        for lead in leads
    }
    predicted = TorchPrediction(Normal(normal, normal + 1))
    errors = np.random.default_rng(2).integers(-75, 76, (ERRORS, len(leads), *grid.shape), np.int8)
    pairs = tuple((str(VARIABLES[0]), lead) for lead in leads)
    noise = Noise(errors, pairs, tuple(range(ERRORS)), 0.7, 0.7)
    seconds = {}
    for method in METHODS:
        options, own, reader.count = CorrectionOptions(members=method), past(), 0
        common = (VARIABLES, forecasts[24].mask, domain, options)

        @cache
        def change(lead: int, common: tuple[Any, ...] = common) -> np.ndarray:
            return change_of_ecc_q(predicted, forecasts[lead], *common)

        def both(own: Past = own, common: tuple[Any, ...] = common, change: Any = change) -> None:
            for one in forecasts.values():
                corrected_members(
                    predicted, one, *common, own, fields(np.array([start]), leads, members), change, noise
                )

        if not seconds:
            both()  # loads and compiles
        seconds[method] = elapsed(both) / len(leads)
        print(f"{method:<17} {seconds[method]:7.2f} s  {reader.count:6d} fields", flush=True)
    return {method: value / seconds["ecc-q"] for method, value in seconds.items()}


BLOCK, REGIONS, REGION_CELLS = 10, 30, 50
"""Rows and columns of a tile, number of regions, and cells of each, in the scores of the twin experiment."""


class TwinScores:
    """Scores of members of the twin experiment in the folder `path`, after EMOS that is fitted here."""

    names = (
        "cells, energy", "cells, variogram", "leads, energy", "leads, variogram", "targets, energy",
        "targets, variogram", "regions, mean", "regions, maximum",
    )  # fmt: skip

    def __init__(self, path: str) -> None:
        archive = Archive([f"{path}/output.*"], [f"{path}/analysis.*"], [f"{path}/static"])
        inputs, split = ["z@500", "t@850", "2t"], Split([1998, 2013], [2014, 2015], [2016, 2017], gap_days=0)
        self.task = task = Task("joint", inputs, inputs, [24, 48])
        train, val, self.test = (
            ForecastDataset(archive, task, split.dates(name, task.lead_times)) for name in ("train", "val", "test")
        )
        self.grid = grid = self.test.grid
        spec = {"_target_": "models.statistical.emos.EMOS", "shared": True}
        self.corrector = Corrector(task, grid, spec, self.test.static, meanings=train.meanings).eval()
        print(f"fit of EMOS {elapsed(lambda: self.corrector.fit(train)):.0f} s")

        def fit_own() -> None:
            self.noise = fit_noise(self.corrector, train, val)

        print(f"fit of the noise {elapsed(fit_own):.0f} s")
        self.past = Past.of(archive, task, split.dates("train", task.lead_times))
        self.current = archive.ensemble_fields(task.targets, task.lead_times)
        places, rng = np.broadcast_arrays(grid.cell_latitudes, grid.cell_longitudes), np.random.default_rng(0)
        points = unit_vectors(*(one.ravel() for one in places))
        area = np.broadcast_to(grid.weights[:, None], grid.shape).ravel()
        centres = rng.choice(len(points), REGIONS, p=area / area.sum())
        self.regions = (points[centres] @ points.T).argsort(1)[:, -REGION_CELLS:]
        rows, columns = (np.arange(size // BLOCK * BLOCK).reshape(-1, BLOCK) for size in grid.shape)
        self.tiles = (rows[:, None, :, None] * grid.shape[1] + columns[None, :, None]).reshape(-1, BLOCK**2)
        place = np.indices((BLOCK, BLOCK)).reshape(2, -1)
        apart = np.linalg.norm(place[:, :, None] - place[:, None], axis=0)
        self.nearness = np.divide(1, apart, out=np.zeros_like(apart), where=apart > 0)
        truths = np.stack([self.test[k].target.numpy() for k in range(len(self.test))])
        self.unit = truths.std(0).mean((1, 2))[:, None]
        self.middle = truths.mean(0).reshape(len(self.unit), -1) / self.unit

    @torch.no_grad()
    def of(self, methods: Sequence[str], count: int) -> np.ndarray:
        """Return the scores `names` (methods, 8, starts), in units of the standard deviation of each target."""
        starts, leads = (one.numpy() for one in self.test.times())
        found = []
        for start in np.unique(starts):
            rows = sorted(np.flatnonzero(starts == start), key=leads.__getitem__)
            batch = Sample(*map(torch.stack, zip(*(self.test[int(row)] for row in rows), strict=True)))
            predicted = self.corrector(batch)
            truth = batch.target.flatten(2).double().numpy() / self.unit
            found.append([])
            for method in methods:
                made = written_members(
                    predicted,
                    batch,
                    self.task,
                    self.grid,
                    CorrectionOptions(members=method, member_count=count),
                    self.past,
                    self.current,
                    self.noise,
                )
                found[-1].append(self._scores(made.members.flatten(3).double().numpy() / self.unit, truth))
        return np.moveaxis(np.array(found), 0, -1)

    def _scores(self, x: np.ndarray, y: np.ndarray) -> list[float]:
        """Return the scores of members (M, L, T, N)."""

        def over(members: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> list[float]:
            """Score vectors along the last axis."""
            d = truth.shape[-1]
            vectors = np.moveaxis(members, -1, 1).reshape(len(members), d, -1), np.moveaxis(truth, -1, 0).reshape(d, -1)
            return vector_scores(*vectors, weights / max(weights.sum(), 1)).mean(1)[[0, 2]].tolist()

        pair, alone = (lambda d: 1 - np.eye(d)), np.zeros((1, 1))
        sums = [(one[..., self.regions].mean(-1), one[..., self.regions].max(-1)) for one in (x, y)]
        return [
            *over(x[..., self.tiles], y[..., self.tiles], self.nearness),
            *over(x.swapaxes(1, 3), y.swapaxes(0, 2), pair(y.shape[0])),
            *over((x - self.middle).swapaxes(2, 3), (y - self.middle).swapaxes(1, 2), pair(y.shape[1])),
            *(over(own[..., None], truth[..., None], alone)[0] for own, truth in zip(*sums, strict=True)),
        ]


def print_twin(path: str) -> dict[str, float]:
    """Print differences of methods in per cent with 95 % intervals; return the differences of `noise` from `gca`."""
    twin = TwinScores(path)
    for count, methods in ((10, ("ecc-q", "decc", "schaake", "gca", "noise")), (50, ("ecc-q", "gca", "noise"))):
        scores = dict(zip(methods, twin.of(methods, count), strict=True))
        print(f"{count} members, %".ljust(17), *(f"{name:>18}" for name in twin.names))
        for method, reference in (*((one, "ecc-q") for one in methods[1:]), ("noise", "schaake"), ("noise", "gca")):
            if reference in scores:
                own, other = scores[method], scores[reference]
                change = 100 * (own - other) / other.mean(-1, keepdims=True)
                error = 1.96 * change.std(-1, ddof=1) / change.shape[-1] ** 0.5
                columns = (f"{one:+9.2f} ± {half:6.2f}" for one, half in zip(change.mean(-1), error, strict=True))
                print(f"{method} - {reference}".ljust(17), *columns, flush=True)
    return dict(zip(twin.names, change.mean(-1).tolist(), strict=True))


def line(method: str, scores: np.ndarray, reference: np.ndarray) -> tuple[str, list[float]]:
    """Return a row of the table, and the difference of each score from the score of `ecc-q` in per cent."""
    text, gains = f"{method:<17}", []
    for own, other in zip(scores, reference, strict=True):
        minus, (starts, repetitions) = own - other, own.shape
        change = 100 * minus.mean(0) / other.mean()
        text += f" {own.mean():8.4f} {change.mean():+7.2f} ± {change.std(ddof=1) / repetitions**0.5:4.2f}"
        with np.errstate(invalid="ignore", divide="ignore"):
            statistic = np.sqrt(starts) * minus.mean(0) / minus.std(0, ddof=1)
        text += f" {(statistic < -1.96).mean():5.0%} {(statistic > 1.96).mean():5.0%}"
        gains.append(float(change.mean()))
    return text, gains


def main(arguments: Sequence[str] | None = None) -> None:
    """Score all methods for each correlation of the members."""
    parser = command_line(__doc__, repetitions=100, starts=200, members=10)
    parser.add_argument("--cost", action="store_true", help="print what each method costs in place of scores")
    parser.add_argument("--twin", metavar="FOLDER", help="score members of the twin experiment in this folder")
    options = parser.parse_args(arguments)
    if options.twin:
        ratios = print_twin(options.twin)
        report("dependence", ratios, options.json)
        return
    if options.cost:
        costs = print_costs(options.members)
        print("seconds over those of ecc-q")
        report("dependence", costs, options.json)
        return
    ratios = {}
    for correlation in CORRELATIONS:
        simulation = Simulation(correlation, options.repetitions, options.starts)
        reference = simulation.scores("ecc-q")
        print(f"correlation of the observations {TRUE}, of the members {correlation}")
        print(f"{'':<17}   energy   vs ecc-q, %     +     - variogram vs ecc-q, %    +     -")
        for method in (RAW, *METHODS, DRAWN):
            text, gains = line(method, simulation.scores(method), reference)
            print(text, flush=True)
            if method == "schaake":
                ratios |= dict(zip((f"energy_{correlation}", f"variogram_{correlation}"), gains, strict=True))
    print("schaake less ecc-q, in per cent, for each correlation of the members")
    report("dependence", ratios, options.json)


if __name__ == "__main__":
    main()
