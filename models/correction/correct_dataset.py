"""`correct_dataset`: forecasts in a dataset of xarray with corrected members in place of the raw ones.

The verb `correct` uses the same pipeline. A dataset in memory is corrected at once. In a dataset of dask, each block of
the result is one forecast, which is corrected when it is computed: only the forecasts that dask works on at a time are
in memory.
"""

from __future__ import annotations

import uuid
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr
from dask.utils import SerializableLock

from data_pipeline.common.errors import InputError
from data_pipeline.common.progress import Progress
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points, has_ids
from data_pipeline.protocols import Fields
from data_pipeline.samples.inputs import input_fields, starts_without_input
from data_pipeline.sources.array_fields import (
    ANALYSIS,
    FORECAST,
    ArrayReader,
    StandardDataset,
    analyses_in_arrays,
    forecasts_in_arrays,
)
from data_pipeline.task import Task, Variable
from data_pipeline.variables.meaning import Meaning, differences
from data_pipeline.writing.product import Product
from models.correction.dataset_result import corrected_alone, in_place, with_products
from models.correction.gaps import Gaps
from models.correction.guards import Guard
from models.correction.pipeline import CorrectionPipeline
from models.engines.engine import CorrectorDescription, Engine, at_stations, with_cells
from models.engines.forecast import SharedReading
from models.members.members import member_numbers
from models.members.options import CorrectionOptions
from models.members.past import Past
from models.members.products import products_of_tasks
from models.parallel.single_process import SingleProcess
from models.provenance.envelope import untrained_sentence
from models.provenance.groups import check_groups, without_group_sentence


def correct_dataset(
    engine: Engine,
    dataset: xr.Dataset,
    analysis: xr.Dataset | None,
    names: Mapping[str, str] | None,
    guard: Guard,
    history: str | Sequence[str] | None,
    reforecasts: str | Sequence[str] | None,
    stations: Points | None = None,
    static_fields: xr.Dataset | None = None,
    products: str | Sequence[str] | None = None,
    **further: Any,
) -> xr.Dataset:
    """Return `dataset` with the corrected members of the targets at the lead times of the task.

    The result has the dimensions, names, units and types of `dataset`. Fields of a target at other lead times or
    levels, and all other variables, stay as they are; a `UserWarning` counts them. With `member_count`, the result has
    the corrected fields only. Products have variables of their own, as in NetCDF files of `correct`; those of forecasts
    that keep their raw members are NaN. `analysis` are analyses (time, latitude, longitude) for a corrector that reads
    them at the start; `names` maps names of variables to GRIB names; `further` are other fields of `CorrectionOptions`.
    A dataset on a grid is read at the stations of a corrector that was trained with forecasts on a grid, or at
    `stations`, with the `static_fields` of the forecast model.

    Raises `InputError` for a dataset that lacks an input, has other units, another grid or no lead time of the task;
    for a forecast that does not resemble the training, when that forecast is computed.
    """
    past_files, forecast_files, wanted = (
        (one,) if isinstance(one, str) else tuple(one or ()) for one in (history, reforecasts, products)
    )
    options = CorrectionOptions(history=past_files, reforecasts=forecast_files, products=wanted, **further)
    forecasts, processes = StandardDataset.forecasts(dataset, "the dataset", names), SingleProcess()
    own = engine.description.grid
    static: xr.Dataset | None = None
    if stations is not None:
        surface = StandardDataset.static(static_fields, "static_fields") if static_fields else None

        def surface_at(points: Points) -> xr.Dataset:
            return surface.at_stations(points).dataset if surface else xr.Dataset()

        own, sentence = with_cells([engine], stations, forecasts.grid, surface_at)
        warnings.warn(sentence, UserWarning, stacklevel=3)
        static = surface_at(own)
    if isinstance(own, Points) and own.cells and not has_ids(forecasts.grid):
        forecasts = forecasts.at_stations(own)
        names_of_user = {role: given for role, given in forecasts.own_names.items() if role in forecasts.dataset.dims}
        leads = forecasts.own_names["lead_time"]
        dataset = forecasts.dataset.rename(names_of_user).assign_coords({leads: dataset[leads]})
    engine = at_stations(engine, forecasts.grid, processes, static)
    guard = guard.at(forecasts.grid, processes, static)
    if engine.description.stations:
        warnings.warn(engine.description.stations, UserWarning, stacklevel=3)
    past = Past.open(options, engine.description, names)
    task = engine.description.task
    (made,) = products_of_tasks(options.products, [task])
    correction = _DatasetCorrection(engine, options, guard, past, made)
    guard.check_fallback(engine.description)
    leads = _lead_times(task, forecasts)
    source = _open(forecasts, analysis, task)
    _check_inputs(source, engine.description, leads)
    alone = options.member_count is not None or options.only_products
    if not alone:
        _warn_of_unchanged(forecasts, task, leads)
    lazy = any(array.chunks for array in source.forecasts.values())
    corrected = (correction.lazily if lazy else correction.at_once)(source, leads)
    members = {target: array for target, array in corrected.items() if isinstance(target, Variable)}
    result = (corrected_alone if alone else in_place)(dataset, forecasts, members)
    return with_products(result, dataset, forecasts, task, made, corrected)


@dataclass(frozen=True, eq=False)
class _Source:
    """Arrays of forecasts and of analyses by variable; the source of `input_fields`."""

    forecasts: Mapping[Variable, xr.DataArray]
    analyses: Mapping[Variable, xr.DataArray]
    meanings: Mapping[tuple[str, Variable], Meaning]
    """The meaning of each variable, by part (`forecasts` or `analyses`) and variable."""
    grid: Grid

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open forecasts."""
        meanings = [self.meanings["forecasts", one] for one in variables]
        return forecasts_in_arrays(
            {one: self.forecasts[one] for one in variables}, meanings, self.grid, lead_times, "the dataset"
        )

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open analyses."""
        meanings = [self.meanings["analyses", one] for one in variables]
        return analyses_in_arrays({one: self.analyses[one] for one in variables}, meanings, self.grid, "the analysis")


def _open(forecasts: StandardDataset, analysis: xr.Dataset | None, task: Task) -> _Source:
    """Return the fields that a task reads."""
    if task.analysis and analysis is None:
        wanted = ", ".join(map(str, task.analysis))
        raise InputError(f"the corrector reads the analysis of {wanted} at the start; give it as analysis=DATASET")
    if analysis is not None and not task.analysis:
        raise InputError("the corrector reads no analysis; leave out analysis")
    if lagged := [str(one) for one in task.formulas if one.lag]:
        raise InputError(
            f"the corrector reads {lagged[0]}, and datasets have no earlier starts; correct files with "
            "deepweather correct earlier=[FILES]"
        )
    fields = [one for one in task.fields_read if one.origin != "analysis" and type(one.variable) is Variable]
    parts: dict[str, tuple[StandardDataset, Sequence[str], Iterable[Variable]]]
    parts = {"forecasts": (forecasts, FORECAST, list(dict.fromkeys(one.variable for one in fields)))}
    if analysis is not None:
        opened = StandardDataset.analyses(analysis, "the analysis")
        if not forecasts.grid.matches(opened.grid):
            raise InputError(f"the analysis has {opened.grid}, the dataset {forecasts.grid}; bring both to one grid")
        parts["analyses"] = opened, ANALYSIS, task.analysis
    arrays = {
        name: {one: part.field(one, outer) for one in variables} for name, (part, outer, variables) in parts.items()
    }
    meanings = {(name, one): part.meaning(one) for name, (part, _, variables) in parts.items() for one in variables}
    return _Source(arrays["forecasts"], arrays.get("analyses", {}), meanings, forecasts.grid)


def _lead_times(task: Task, forecasts: StandardDataset) -> tuple[int, ...]:
    """Return the lead times of the task that the dataset has."""
    known = forecasts.dataset.lead_time.values.tolist()
    found = tuple(lead for lead in task.lead_times if lead in known)
    if not found:
        have, want = (", ".join(map(str, leads)) for leads in (known, task.lead_times))
        raise InputError(f"the dataset has the lead times {have} h, the corrector corrects {want} h; open one of these")
    return found


def _check_inputs(source: _Source, corrector: CorrectorDescription, leads: tuple[int, ...]) -> None:
    """Refuse another grid, other units and missing inputs."""
    if not corrector.grid.matches(source.grid):
        raise InputError(
            f"the dataset has {source.grid}, the corrector {corrector.grid}; open the files on the corrector's grid, "
            "with open_ensemble(..., target=TargetGrid(corrector.grid))"
        )
    inputs = input_fields(source, replace(corrector.task, lead_times=leads))
    check_groups(corrector.provenance, corrector.task, inputs.numbers)
    if without := starts_without_input(inputs):
        start, channels = next(iter(without.items()))
        raise InputError(
            f"the dataset and its analysis lack {', '.join(channels)} for the forecast of {start}, one of "
            f"{len(without)} that cannot be corrected; leave out these forecasts"
        )
    if corrector.meanings and (
        found := differences(corrector.meanings, corrector.task.lead_times, inputs.meanings, leads)
    ):
        raise InputError(
            f"the corrector was trained on {'; '.join(found)} as in the dataset; convert its values and set the "
            "attribute units, or open it on this level"
        )


def _warn_of_unchanged(forecasts: StandardDataset, task: Task, leads: tuple[int, ...]) -> None:
    """Warn of fields of the targets that are not corrected."""
    known = forecasts.dataset.lead_time.values.tolist()
    if others := [lead for lead in known if lead not in leads]:
        warnings.warn(
            f"{len(others)} of {len(known)} lead times are no lead times of the corrector and stay as they are: "
            f"{', '.join(map(str, others))} h",
            UserWarning,
            stacklevel=4,
        )
    for name in dict.fromkeys(target.label for target in task.targets if target.level):
        own = {target.level for target in task.targets if target.label == name}
        levels = forecasts.dataset.level.values.tolist()
        if others := [level for level in levels if level not in own]:
            warnings.warn(
                f"{name} at {len(others)} of {len(levels)} levels is not corrected and stays as it is: "
                f"{', '.join(map(str, others))} hPa",
                UserWarning,
                stacklevel=4,
            )


@dataclass(frozen=True, eq=False)
class _DatasetCorrection:
    """Corrects single forecasts with fixed options."""

    engine: Engine
    options: CorrectionOptions
    guard: Guard
    past: Past | None = None
    products: tuple[Product, ...] = ()
    lock: SerializableLock = field(default_factory=SerializableLock)
    """Only one thread uses the model at a time: models are not thread-safe, and each uses all processors."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __dask_tokenize__(self) -> str:
        return self.token

    def at_once(self, source: _Source, leads: tuple[int, ...]) -> dict[Variable | Product, xr.DataArray]:
        """Return the corrected members of each target, (init_time, lead_time, number, latitude, longitude).

        Products have no dimension `number`, and are NaN where a forecast keeps its raw members.
        """
        task = replace(self.engine.description.task, lead_times=leads)
        inputs, raw, gaps = input_fields(source, task), source.ensemble_fields(task.targets, leads), Gaps(task)
        own = frozenset((target, lead) for target in task.targets for lead in leads)
        pipeline = CorrectionPipeline(
            self.engine, inputs, raw, SingleProcess(), self.options, gaps, own, self.past, self.guard, self.products
        )
        assert isinstance(raw.reader, ArrayReader)
        arrays = self._templates(dict(zip(task.targets, raw.reader.arrays, strict=True)))
        out = {one: np.full(array.shape, np.nan, array.dtype) for one, array in arrays.items()}
        numbers = member_numbers(raw.numbers, self.options.member_count)
        problems: list[str] = []
        untrained: list[str] = []
        absent = Counter[str]()
        raw_kept = 0
        with self.lock, Progress("correct: forecast", len(inputs.init_times) * len(leads)) as progress:
            for i, start in enumerate(inputs.init_times):
                for j in range(len(leads)):
                    found = pipeline.correct(i, j, SharedReading())
                    assert found is not None  # this process is the first rank
                    assert found.members is not None
                    allowed, raw_kept = found.method == "corrector", raw_kept + (found.method == "raw")
                    problems += () if allowed else found.problems
                    untrained += [one.partition(": ")[2] for one in found.problems[:1] if allowed]
                    absent.update(found.absent)
                    same = found.absent or self.options.only_products
                    if not same and len(found.members) != out[task.targets[0]].shape[2]:
                        raise InputError(
                            f"the forecast of {start} +{leads[j]} h keeps its {len(found.members)} raw members, and "
                            f"member_count={self.options.member_count}; leave out member_count, or this forecast"
                        )
                    for t, target in enumerate(task.targets):
                        if target in out:
                            whole = len(found.numbers) == len(numbers)
                            there = slice(None) if whole else np.isin(numbers, found.numbers)
                            out[target][i, j, there] = found.members[:, t].reshape(-1, *out[target].shape[3:])
                    for product, values in found.products:
                        out[product][i, j] = values.reshape(out[product].shape[2:])
                    progress.step(np.datetime_as_string(start, "h"))
        total = len(inputs.init_times) * len(leads)
        if untrained:
            problems.append(untrained_sentence("the dataset", len(untrained), total, untrained[0]))
        problems += [without_group_sentence("the dataset", name, count, total) for name, count in absent.items()]
        if self.products and raw_kept:
            problems.append(f"{raw_kept} forecasts keep their raw members and have no products")
        for sentence in (*gaps.sentences(), *problems):
            warnings.warn(sentence, UserWarning, stacklevel=4)
        return {one: array.copy(data=out[one]) for one, array in arrays.items()}

    def _templates(self, raw: Mapping[Variable, xr.DataArray]) -> dict[Variable | Product, xr.DataArray]:
        """Return arrays like those of the result; their values do not count."""
        members = {} if self.options.only_products else {one: self._as_many(array) for one, array in raw.items()}
        arrays = list(raw.values())
        return members | {one: arrays[one.target].isel(number=0, drop=True) for one in self.products}

    def _as_many(self, array: xr.DataArray) -> xr.DataArray:
        """Return an array with as many members as the corrected forecast has; its values do not count."""
        if (count := self.options.member_count) is None:
            return array
        whole = array.number.values if array.number.dtype.kind in "iu" else np.arange(array.sizes["number"])
        numbers = list(member_numbers(tuple(whole.tolist()), count))
        return array.isel(number=np.arange(count) % array.sizes["number"]).assign_coords(number=numbers)

    def lazily(self, source: _Source, leads: tuple[int, ...]) -> dict[Variable | Product, xr.DataArray]:
        """Return the result of `at_once` as arrays of dask, a block for each forecast.

        If inputs include fields at other lead times, or members depend on these, a block has all lead times of a start.
        """
        task = self.engine.description.task
        method = self.options.method
        joint = method.compares or method.correlates
        single = not joint and not any(channel.origin in ("start", "before") for channel in task.fields_read)
        block = xr.Dataset({f"forecasts {one}": _bare(array) for one, array in source.forecasts.items()})
        for one, array in source.analyses.items():
            at_start = _bare(array).sel(time=block.init_time.values)
            block[f"analyses {one}"] = at_start.rename(time="init_time")
        if single:
            block = block.sel(lead_time=list(leads))
        block = block.chunk(dict.fromkeys(block.dims, -1) | {"init_time": 1} | ({"lead_time": 1} if single else {}))
        raw = {target: block[f"forecasts {target}"].sel(lead_time=list(leads)) for target in task.targets}
        made = self._templates(raw)
        template = xr.Dataset({str(k): array for k, array in enumerate(made.values())})
        if "number" in template.dims:
            template = template.chunk(number=-1)
        if not single:
            template = template.chunk(lead_time=-1)
        result = xr.map_blocks(
            _correct_block, block, kwargs={"correction": self, "source": replace(source, forecasts={}, analyses={})},
            template=template,
        )  # fmt: skip
        return {one: result[str(k)] for k, one in enumerate(made)}


def _bare(array: xr.DataArray) -> xr.DataArray:
    """Return an array with the coordinates of its dimensions only, and without attributes."""
    return array.drop_vars([name for name in array.coords if name not in array.dims]).drop_attrs()


def _correct_block(block: xr.Dataset, correction: _DatasetCorrection, source: _Source) -> xr.Dataset:
    """Correct one forecast, whose fields are in memory; dask calls this. `source` gives units and grid."""
    arrays: dict[str, dict[Variable, xr.DataArray]] = {"forecasts": {}, "analyses": {}}
    for name, array in block.items():
        part, _, variable = str(name).partition(" ")
        arrays[part][Variable.parse(variable)] = array if part == "forecasts" else array.rename(init_time="time")
    leads = tuple(one for one in correction.engine.description.task.lead_times if one in block.lead_time.values)
    corrected = correction.at_once(replace(source, forecasts=arrays["forecasts"], analyses=arrays["analyses"]), leads)
    return xr.Dataset({str(k): array for k, array in enumerate(corrected.values())})
