"""Pipelines: each corrects the forecasts of one input with one corrector, on all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.progress import Progress
from data_pipeline.protocols import Fields
from data_pipeline.task import Variable
from data_pipeline.writing.product import EXTREMES, ClimateSample, Product
from models.correction.corrected import Corrected
from models.correction.gaps import Gaps, count_gaps
from models.correction.guards import Guard, Verdict, summarise_forecast
from models.engines.engine import Engine, Prediction
from models.engines.forecast import RawForecast, SharedReading, read_forecast
from models.members.conformal import band_weights
from models.members.members import change_of_ecc_q, corrected_members, member_numbers
from models.members.mutual_bounds import bound_by_raw, bound_mutually, mutual_bounds
from models.members.options import CorrectionOptions, noise_of
from models.members.past import Past
from models.members.products import product_fields
from models.members.truth_climate import TruthClimate
from models.parallel.single_process import Processes
from models.provenance.envelope import untrained_sentence
from models.provenance.groups import without_group_sentence


class CorrectedTile(NamedTuple):
    """The corrected fields of one rank's tile of a forecast."""

    members: np.ndarray
    """(M, T, h, w); no members with `members=none`."""
    products: np.ndarray
    """(P, h, w)."""
    missing: np.ndarray
    """The result of `count_gaps`."""
    without: np.ndarray
    """(P,) Number of cells in which a product is missing and all raw members are there."""
    climate: ClimateSample | None = None
    """What products are compared with."""


@dataclass(frozen=True)
class CorrectionPipeline:
    """Corrects the forecasts of an input with one corrector; each rank corrects its tile."""

    engine: Engine
    inputs: Fields
    raw: Fields
    processes: Processes
    options: CorrectionOptions
    gaps: Gaps
    """Gaps of all forecasts so far, on the first rank."""
    elsewhere: frozenset[tuple[Variable, int]] = frozenset()
    """Targets and lead times that any pipeline of the run corrects; their raw members bound no other variable."""

    past: Past | None = None
    """For the methods and products that read it."""
    guard: Guard = field(default_factory=Guard)
    products: tuple[Product, ...] = ()
    _changes: dict[tuple[np.datetime64, int], np.ndarray] = field(default_factory=dict, init=False)
    """What `_change` has computed of the latest start."""

    def correct(self, init: int, lead: int, reading: SharedReading) -> Corrected | None:
        """Return on the first rank the corrected forecast at these positions; all ranks must call this together."""
        name = f"{np.datetime_as_string(self.inputs.init_times[init], 'h')} +{self.inputs.lead_times[lead]} h"
        with Progress(f"reading the forecast {name}"):
            forecast = self.processes.run_on_all(lambda: self._read(init, lead, reading))
        with Progress(f"checking the forecast {name}"):
            verdict = self._verdict(forecast)
        with Progress(f"correcting the forecast {name}"):
            own = self.processes.run_on_all(lambda: self._correct_tile(forecast, verdict.method))
            tiles = self.processes.gather(own)
        if tiles is None:
            return None
        self.gaps.add(reduce(add, [tile.missing for tile in tiles]))
        self.gaps.add_products(self.products, reduce(add, [tile.without for tile in tiles]))
        join, raw = self.engine.domain.join, verdict.method == "raw"
        members = join([tile.members for tile in tiles])
        products = () if raw else tuple(zip(self.products, join([tile.products for tile in tiles]), strict=True))
        numbers = forecast.numbers if raw else member_numbers(forecast.numbers, self.options.member_count)
        numbers = () if self.options.only_products else numbers
        return Corrected(
            forecast.init_time, forecast.lead_time, members, numbers, products, tiles[0].climate, verdict.method,
            verdict.problems, forecast.absent, len(forecast.numbers),
        )  # fmt: skip

    def _verdict(self, forecast: RawForecast) -> Verdict:
        """Return on all ranks the guard's verdict on a forecast."""
        own = self.processes.run_on_all(lambda: summarise_forecast(forecast, self.engine.domain))
        tiles = self.processes.gather(own)

        def decide() -> Verdict:
            return self.guard.verdict(self.engine.description, tiles or [], forecast)

        return self.processes.run_on_first(decide)

    def read(self, init_time: np.datetime64, lead_time: int) -> RawForecast:
        """Return the raw forecast of a start and a lead time (hours) on this rank's tile."""
        init, lead = self.positions(init_time, lead_time)
        return self._read(init, lead, SharedReading())

    def _read(self, init: int, lead: int, reading: SharedReading) -> RawForecast:
        task = self.engine.description.task
        return read_forecast(self.inputs, self.raw, self.engine.domain, init, lead, reading, task)

    def positions(self, init_time: np.datetime64, lead_time: int) -> tuple[int, int]:
        """Return the positions of a start and a lead time (hours) in the input."""
        return int(np.searchsorted(self.inputs.init_times, init_time)), self.inputs.lead_times.index(lead_time)

    def corrects(self, init_time: np.datetime64, lead_time: int) -> bool:
        """Whether the input has the forecast of a start and a lead time (hours)."""
        return init_time in self.inputs.init_times and lead_time in self.inputs.lead_times

    def _correct_tile(self, forecast: RawForecast, method: str = "corrector") -> CorrectedTile:
        """Correct this rank's tile of a forecast; a forecast that keeps its raw members has no products."""
        task = self.engine.description.task
        without = np.isin(range(len(task.channels)), task.channels_of(forecast.absent))
        missing = count_gaps(
            forecast.mask | without[:, None, None], forecast.raw, self.engine.always, self.engine.known, task
        )
        if method == "raw":
            nothing = np.empty((0, *self.engine.domain.own_shape))
            kept = forecast.raw[:0] if self.options.only_products else forecast.raw
            return CorrectedTile(kept.copy(), nothing, missing, np.zeros(len(self.products), np.int64))
        covered = forecast.mask[list(task.target_channels)]
        prediction = self.predict(forecast) if method == "corrector" else self._predict_fallback(forecast)
        climate = self._climate(forecast) if {one.kind for one in self.products} & EXTREMES.keys() else None
        products = product_fields(self.products, prediction, covered, task.targets, climate)
        absent = np.isnan(products) & covered[[one.target for one in self.products]]
        if self.options.only_products:
            members = forecast.raw[:0]
        else:
            members = corrected_members(
                prediction, forecast, task.targets, covered, self.engine.domain, self.options, self.past, self.raw,
                partial(self._change, forecast.init_time), noise_of(self.options, self.engine.description),
            )  # fmt: skip
            self._bound(members, forecast, covered)
        whole = np.isfinite(members).all(0)
        for product, values in zip(self.products, products, strict=True):
            if product.kind in EXTREMES:
                continue
            whole[product.target] &= np.isfinite(values)
        if lost := int((covered & ~whole).sum()):
            raise InputError(
                f"the corrected forecast of {forecast.init_time} +{forecast.lead_time} h has no value in {lost} of "
                f"{covered.size} cells where the input has all members; "
                "train the corrector on years with an analysis there"
            )
        sample = climate.sample if climate else None
        return CorrectedTile(members, products, missing, absent.sum((1, 2)), sample)

    def _climate(self, forecast: RawForecast) -> TruthClimate:
        assert self.past is not None
        valid = forecast.init_time + np.timedelta64(forecast.lead_time, "h")
        return TruthClimate.of(self.past, valid, self.engine.description.task.targets, self.engine.domain)

    def _change(self, start: np.datetime64, lead: int) -> np.ndarray:
        """Return what `ecc-q` adds to the raw members of a start at a lead time (hours)."""
        if (start, lead) not in self._changes:
            if not self.corrects(start, lead):
                raise InputError(
                    f"members={self.options.members} needs all lead times of the corrector, and the forecast of "
                    f"{start} has none at +{lead} h; add it, or choose members=ecc-q"
                )
            for key in [key for key in self._changes if key[0] != start]:
                del self._changes[key]
            forecast, task = self.read(start, lead), self.engine.description.task
            covered = forecast.mask[list(task.target_channels)]
            self._changes[start, lead] = change_of_ecc_q(
                self.predict(forecast), forecast, task.targets, covered, self.engine.domain, self.options
            )
        return self._changes[start, lead]

    def _predict_fallback(self, forecast: RawForecast) -> Prediction:
        """Return the distribution of the fallback on this rank's tile."""
        fallback = self.guard.fallback
        assert fallback is not None
        return fallback.predict(self.guard.narrowed(self.engine.description, forecast))

    def _bound(self, members: np.ndarray, forecast: RawForecast, covered: np.ndarray) -> None:
        """Bound corrected members by each other and by raw members of other inputs, where all targets are corrected."""
        task = self.engine.description.task
        corrected = {target: members[:, t] for t, target in enumerate(task.targets)}
        others = [
            (c, variable)
            for c, variable in enumerate(task.inputs)
            if variable not in corrected and (variable, forecast.lead_time) not in self.elsewhere
        ]
        bounds = mutual_bounds([*task.inputs])
        needed = {variable for bound in bounds for variable in (bound.dependent, bound.other)}
        if not needed & corrected.keys():
            return
        raw = {}
        for c, variable in others:
            if variable in needed:
                field = np.where(forecast.mask[c], forecast.ensemble[:, c], np.nan)
                if self.options.members == "quantiles":
                    field.sort(axis=0)
                raw[variable] = field[np.arange(len(members)) % len(field)]
        partial = ~covered
        kept = members[:, partial]
        bound_by_raw(corrected, raw)
        bound_mutually(corrected)
        members[:, partial] = kept  # missing values, and raw members that are not corrected

    def predict(self, forecast: RawForecast) -> Prediction:
        """Return the corrected distribution on this rank's tile, moved by the conformal layer if there is one."""
        prediction, description = self.engine.predict(forecast), self.engine.description
        layer = self.options.conformal.get(description.sha256)
        if layer is None:
            return prediction
        # Weights of the latitude bands are computed on the whole grid: a tile may contain no core of a band.
        latitudes = np.broadcast_to(description.grid.cell_latitudes, description.grid.shape)
        shares = {name: share[self.engine.domain.tile] for name, share in band_weights(latitudes).items()}
        return layer.apply(prediction, description.task.targets, forecast.lead_time, shares)


class CorrectionPipelines:
    """The pipelines of a run: the first rank requests a forecast of a pipeline, and all ranks correct it.

    The other ranks must be in `serve`.
    """

    def __init__(self, pipelines: Sequence[CorrectionPipeline], processes: Processes) -> None:
        self._pipelines, self._processes = tuple(pipelines), processes
        self._done: list[dict[tuple[int, int], Corrected]] = [{} for _ in self._pipelines]

    def __iter__(self) -> Iterator[CorrectionPipeline]:
        return iter(self._pipelines)

    def __len__(self) -> int:
        return len(self._pipelines)

    def __getitem__(self, number: int) -> CorrectionPipeline:
        return self._pipelines[number]

    @cached_property
    def progress(self) -> Progress:
        """The progress of the forecasts; entered while the output is written."""
        return Progress("correct: forecast", len(self.forecasts()))

    def forecasts(self) -> list[tuple[np.datetime64, int]]:
        """Return start and lead time (hours) of all forecasts that some pipeline corrects, in order."""
        return sorted(
            {
                (start, lead)
                for pipeline in self._pipelines
                for start in pipeline.inputs.init_times.astype("datetime64[s]")
                for lead in pipeline.inputs.lead_times
            }
        )

    def done(self, number: int) -> list[Corrected]:
        """Return, without their fields, all forecasts that the pipeline `number` has corrected."""
        return list(self._done[number].values())

    def product_counts(self) -> Counter[str]:
        """Return the number of forecasts with each product, by its text."""
        return Counter(
            product.text
            for number, pipeline in enumerate(self._pipelines)
            for corrected in self.done(number)
            if corrected.method != "raw"
            for product in pipeline.products
        )

    def product_sentences(self) -> list[str]:
        """Return the number of products, and of forecasts without any because they keep their raw members."""
        if not (counts := self.product_counts()):
            return []
        listed = ", ".join(f"{count} of {text}" for text, count in counts.items())
        done = [corrected for number in range(len(self)) for corrected in self.done(number)]
        raw = sum(corrected.method == "raw" for corrected in done)
        without = [f"{raw} of {len(done)} forecasts keep their raw members and have no products"] if raw else []
        return [f"{counts.total()} products were written: {listed}", *without]

    def refuse_nothing(self, output: Path) -> None:
        """Raise `InputError` if `output` would hold products alone, and there are none."""
        if self[0].options.only_products and not self.product_counts():
            (first, *_) = (corrected.problems[0] for number in range(len(self)) for corrected in self.done(number))
            raise InputError(
                f"{output} would have no products, because all forecasts keep their raw members: {first}; correct "
                "others, or set members=ecc-q"
            )

    def without_groups(self) -> list[str]:
        """Return a sentence for each corrector and group of members that some of its forecasts lack."""
        found = []
        for number, pipeline in enumerate(self._pipelines):
            done, name = self.done(number), pipeline.engine.description.name
            counts = Counter(system for corrected in done for system in corrected.absent)
            found += [without_group_sentence(name, system, count, len(done)) for system, count in counts.items()]
        return found

    def untrained(self) -> list[str]:
        """Return a sentence for each corrector that has corrected forecasts at times without training, as asked."""
        found = []
        for number, pipeline in enumerate(self._pipelines):
            done = self.done(number)
            allowed = [one.problems[0] for one in done if one.method == "corrector" and one.problems]
            if allowed:
                name, example = pipeline.engine.description.name, allowed[0].partition(": ")[2]
                found.append(untrained_sentence(name, len(allowed), len(done), example))
        return found

    def request(self, number: int, init_time: np.datetime64, lead_time: int) -> Corrected:
        """Return the forecast of a start and a lead time (hours) that the pipeline `number` corrects."""
        return self._request((number,), init_time, lead_time)[number]

    def request_all(self, init_time: np.datetime64, lead_time: int) -> dict[int, Corrected]:
        """Return the forecast of a start and a lead time (hours) of all pipelines that correct it, by their number.

        Each field of the input is decoded once for all pipelines.
        """
        numbers = [number for number, each in enumerate(self._pipelines) if each.corrects(init_time, lead_time)]
        return self._request(tuple(numbers), init_time, lead_time)

    def _request(self, numbers: tuple[int, ...], init_time: np.datetime64, lead_time: int) -> dict[int, Corrected]:
        places = tuple((number, *self._pipelines[number].positions(init_time, lead_time)) for number in numbers)
        self._processes.broadcast(places)
        found = self._correct(places)
        for number, init, lead in places:
            self._done[number][init, lead] = replace(found[number], members=None, products=())
        self.progress.step()
        return found

    def _correct(self, places: tuple[tuple[int, int, int], ...]) -> dict[int, Corrected]:
        """Correct forecasts, return them on the first rank; a place is a pipeline's number, a start and a lead time."""
        reading, found = SharedReading(), dict[int, Corrected]()
        if len(places) > 1:  # fields in double precision are read first; see `SharedReading`
            own = [(self._pipelines[number], init, lead) for number, init, lead in places]
            self._processes.run_on_all(lambda: [reading.exact(p.raw, i, k, p.engine.domain) for p, i, k in own])
        for number, init, lead in places:
            if (corrected := self._pipelines[number].correct(init, lead, reading)) is not None:
                found[number] = corrected
        self._bound_mutually(found)
        return found

    def _bound_mutually(self, found: dict[int, Corrected]) -> None:
        """Bound the members of correctors on equal grids by each other."""
        members: dict[Variable, np.ndarray] = {}
        first = self._pipelines[min(found)].engine.description if found else None
        for number, corrected in found.items():
            description = self._pipelines[number].engine.description
            if first and corrected.members is not None and description.grid.matches(first.grid):
                members |= {target: corrected.members[:, t] for t, target in enumerate(description.task.targets)}
        if len(found) > 1:
            bound_mutually(members)

    def serve(self) -> Any:
        """Correct the requested tiles until the first rank broadcasts a summary or an error."""
        while isinstance(request := self._processes.broadcast(None), tuple):
            with suppress(InputError):  # all ranks get this error; the first rank raises it after it has cleaned up
                self._correct(request)
        if isinstance(request, InputError):
            raise request
        return request
