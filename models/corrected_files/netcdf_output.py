"""NetCDF output: copies of NetCDF inputs with corrected members, or a new file or Zarr store of corrected fields."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.plotting_positions import plotting_position
from data_pipeline.formats.equivalents import sources
from data_pipeline.formats.system_files import added_number
from data_pipeline.formats.table.table_file import as_netcdf, write_copy_of_table
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import UNKNOWN
from data_pipeline.writing.forecast_copy import ForecastCopy, copy_forecasts
from data_pipeline.writing.new_file import NewVariable, new_forecast_file
from data_pipeline.writing.product import Product, ProductVariable
from models.correction.corrected import Corrected
from models.correction.pipeline import CorrectionPipeline, CorrectionPipelines
from models.members.members import member_numbers

_Place = tuple[ForecastCopy, int, int, float]
"""A copy, the number of a block and of a field in it, and the factor from the file's variable to the target."""


def write_netcdf(
    pipelines: CorrectionPipelines,
    forecasts: Sequence[Path],
    outputs: Sequence[Path],
    names: Mapping[str, str] | None = None,
) -> tuple[list[int], list[str]]:
    """Copy each NetCDF file of `forecasts` to the file of `outputs` with corrected members in place of the raw ones.

    Return the number of corrected fields of each output, and notes. One forecast is in memory at a time.
    """
    if len(outputs) != len(forecasts):
        raise InputError(
            f"{len(forecasts)} NetCDF files cannot be joined in {outputs[0]}; name a folder as output, so that each "
            "gets a corrected file of its name"
        )
    with ExitStack() as files:
        targets = [target for each in pipelines for target in each.engine.description.task.targets]
        wanted = {variable for target in targets for variable, _ in _stored_as(target)}
        copies = [
            files.enter_context(copy_forecasts(source, target, wanted, names))
            for source, target in zip(forecasts, outputs, strict=True)
        ]
        for each in pipelines:
            _refuse_other_percentiles(each, copies)
        places = [_places(pipeline, copies, forecasts) for pipeline in pipelines]
        _define_products(pipelines, copies, places)
        changed: dict[tuple[int, int], set[int]] = defaultdict(set)
        counts = [0] * len(copies)
        for number, corrected in corrected_forecasts(pipelines):
            assert corrected.members is not None
            start = int(corrected.init_time.astype("datetime64[s]").astype(np.int64))
            for k in range(corrected.members.shape[1]):
                stored: dict[tuple[ForecastCopy, int, float], dict[int, int]] = defaultdict(dict)
                for member, own in enumerate(corrected.numbers):
                    for copy, block, field, factor in places[number][k, start, 60 * corrected.lead_time, own]:
                        stored[copy, block, factor][field] = member
                for (copy, block, factor), members in stored.items():
                    copy.put(block, [*members], corrected.members[[*members.values()], k] / factor)
                    changed[copies.index(copy), block].add(number)
                    counts[copies.index(copy)] += len(members)
            for product, values in corrected.products:
                key = product.target, start, 60 * corrected.lead_time, corrected.numbers[0]
                for copy, block, field, factor in places[number][key]:
                    copy.put_product(block, field, *product.stored(values, factor, copy.blocks[block].conversion))
        for at, copy in enumerate(copies):
            of_blocks = {block: _marks(pipelines, [*numbers]) for (own, block), numbers in changed.items() if own == at}
            copy.finish(marks(pipelines), of_blocks)
        notes = [note for copy in copies for note in copy.notes]
    return counts, notes


def _define_products(
    pipelines: CorrectionPipelines,
    copies: Sequence[ForecastCopy],
    places: Sequence[Mapping[tuple[int, int, int, int], list[_Place]]],
) -> None:
    """Define the variables of products in each copy that has the first member of their forecasts."""
    wanted: dict[tuple[ForecastCopy, int], list[Product]] = defaultdict(list)
    for pipeline, own in zip(pipelines, places, strict=True):
        for (k, _, _, number), found in own.items():
            for copy, block, _, factor in found if number == pipeline.raw.numbers[0] else ():
                conversion = copy.blocks[block].conversion
                made = [one.stored(np.empty(0), factor, conversion)[0] for one in pipeline.products if one.target == k]
                wanted[copy, block] += [one for one in made if one not in wanted[copy, block]]
    for (copy, block), products in wanted.items():
        copy.define_products(block, products)


def _refuse_other_percentiles(pipeline: CorrectionPipeline, copies: Sequence[ForecastCopy]) -> None:
    """Raise `InputError` if files hold percentiles and corrected members are not quantiles of the same levels."""
    for block in (block for copy in copies for block in copy.blocks if block.percentiles.size):
        position, options = plotting_position(block.percentiles), pipeline.options
        if (options.members, options.quantile_levels) != ("quantiles", position):
            raise InputError(
                f"{block} holds percentiles, and corrected members have another order or other levels; set "
                f"members=quantiles quantile_levels={position}"
            )


def write_tables(
    pipelines: CorrectionPipelines,
    forecasts: Sequence[Path],
    outputs: Sequence[Path],
    names: Mapping[str, str] | None = None,
) -> tuple[list[int], list[str]]:
    """Write tables with corrected members in place of the raw ones, by way of copies of their NetCDF files."""
    with tempfile.TemporaryDirectory(prefix="deepweather-") as folder:
        sources = [as_netcdf(path)[0] for path in forecasts]
        copies = [Path(folder) / f"{k}.nc" for k in range(len(sources))]
        counts, notes = write_netcdf(pipelines, sources, copies, names)
        for path, copy, output in zip(forecasts, copies, outputs, strict=True):
            write_copy_of_table(path, copy, output)
    return counts, notes


def write_new_netcdf(
    pipelines: CorrectionPipelines, forecasts: Sequence[Path], output: Path, as_store: bool = False
) -> tuple[int, list[str]]:
    """Write the corrected fields to a new NetCDF file or Zarr store; return their number, and notes."""
    grids = [pipeline.engine.description.grid for pipeline in pipelines]
    if not all(grid.matches(grids[0]) for grid in grids):
        raise InputError("the correctors have different grids, which one file does not hold; correct with one")
    starts = np.unique(np.concatenate([pipeline.inputs.init_times for pipeline in pipelines]))
    leads = sorted({lead for pipeline in pipelines for lead in pipeline.inputs.lead_times})
    found = [member_numbers(each.raw.numbers, each.options.member_count) for each in pipelines]
    numbers = sorted(found[0])
    if any({*own} != {*numbers} for own in found):
        raise InputError(f"{forecasts[0]} has different members of different targets; write GRIB, or use one corrector")
    variables: dict[tuple[int, int, str], NewVariable] = {}
    """By pipeline, target, and suffix of products."""
    used: set[str] = set()
    for number, pipeline in enumerate(pipelines):
        for k, meaning in enumerate(pipeline.raw.meanings):
            at = dict(zip(pipeline.raw.lead_times, meaning.intervals, strict=True))
            target = pipeline.engine.description.task.targets[k]
            own = NewVariable.of(replace(meaning, variable=target))
            name = own.name if own.name not in used else f"{own.name}_{number + 1}"
            used.add(name)
            intervals = tuple(at.get(lead, meaning.intervals[0]) for lead in leads)
            mark = _marks(pipelines, [number])
            own = replace(own, name=name, intervals=intervals, attributes=mark)
            if not pipeline.options.only_products:
                variables[number, k, ""] = own
            products = ProductVariable.of(name, [one for one in pipeline.products if one.target == k])
            variables |= {(number, k, suffix): replace(own, products=one) for suffix, one in products.items()}
    count = 0
    with new_forecast_file(output, grids[0], starts, leads, numbers, [*variables.values()], as_store) as file:
        for number, corrected in corrected_forecasts(pipelines):
            assert corrected.members is not None
            order = np.argsort(corrected.numbers)
            some = corrected.absent and {*corrected.numbers} <= {*numbers}
            if sorted(corrected.numbers) != numbers and not some and not pipelines[0].options.only_products:
                raise InputError(
                    f"the forecast of {corrected.init_time} +{corrected.lead_time} h has {len(order)} members, others "
                    f"have {len(numbers)}, and one file has the same members everywhere; remove member_count"
                )
            time = corrected.init_time, corrected.lead_time
            for k in range(corrected.members.shape[1]):
                if (number, k, "") in variables:
                    values = np.full((len(numbers), *corrected.members.shape[2:]), np.nan)
                    values[np.isin(numbers, corrected.numbers)] = corrected.members[order, k]
                    file.put(variables[number, k, ""].name, *time, values)
                    count += len(order)
            for product, values in corrected.products:
                one = variables[number, product.target, product.suffix].products
                assert one is not None
                file.put(one.name, *time, values, one.index(product))
        pipelines.refuse_nothing(output)
        file.finish(marks(pipelines))
    return count, [f"{output} holds the corrected fields only; all other fields of the input are left out"]


def corrected_forecasts(pipelines: CorrectionPipelines) -> Iterator[tuple[int, Corrected]]:
    """Yield all corrected forecasts, one in memory at a time per pipeline, with the number of their pipeline."""
    for start, lead in pipelines.forecasts():
        yield from pipelines.request_all(start, lead).items()


def marks(pipelines: CorrectionPipelines) -> dict[str, Any]:
    """Return the attributes that distinguish a corrected file from a raw one; none with `mark=false`."""
    if not pipelines[0].options.mark:
        return {}
    described = [pipeline.engine.description for pipeline in pipelines]
    fallbacks, untrained = [], []
    for number, each in enumerate(described):
        done = pipelines.done(number)
        methods = [corrected.method for corrected in done]
        allowed = sum(corrected.method == "corrector" and bool(corrected.problems) for corrected in done)
        if allowed:
            untrained.append(f"{allowed} of {len(done)} forecasts of {each.task.name} are at times without training")
        for method in sorted({*methods} - {"corrector"}):
            fallbacks.append(f"{methods.count(method)} of {len(methods)} forecasts of {each.task.name} are {method}")
    found: dict[str, Any] = {"deepweather_fallback": "; ".join(fallbacks)} if fallbacks else {}
    found |= {"deepweather_untrained_times": "; ".join(untrained)} if untrained else {}
    return found | {
        "deepweather_corrector": ", ".join(str(each.path or each.name or each.task.name) for each in described),
        "deepweather_corrector_sha256": ", ".join(each.sha256 for each in described),
    }


def _marks(pipelines: CorrectionPipelines, numbers: Sequence[int]) -> dict[str, str]:
    """Return the attributes of a variable that some pipelines have corrected; none with `mark=false`."""
    if not pipelines[0].options.mark:
        return {}
    parts = []
    for number in sorted(numbers):
        task = pipelines[number].engine.description.task
        leads = ", ".join(f"+{lead}" for lead in task.lead_times)
        parts.append(f"members of {', '.join(map(str, task.targets))} at {leads} h corrected by the task {task.name}")
    return {"deepweather_correction": "; ".join(parts)}


def _places(
    pipeline: CorrectionPipeline, copies: Sequence[ForecastCopy], forecasts: Sequence[Path]
) -> Mapping[tuple[int, int, int, int], list[_Place]]:
    """Return where each member of each target is stored, by target, start (s), lead time (minutes) and member."""
    found: dict[tuple[int, int, int, int], list[_Place]] = defaultdict(list)
    task = pipeline.engine.description.task
    for k, (target, meaning) in enumerate(zip(task.targets, pipeline.raw.meanings, strict=True)):
        intervals = dict(zip((60 * lead for lead in pipeline.raw.lead_times), meaning.intervals, strict=True))
        for variable, factor in _stored_as(target):
            for copy, path in zip(copies, forecasts, strict=True):
                added = added_number(forecasts, path)
                for block, rows in copy.fields(variable):
                    for init, lead, number, interval, field in rows.tolist():
                        if lead in intervals and intervals[lead] in (interval, UNKNOWN):
                            found[k, init, lead, number + added].append((copy, block, field, factor))
            if any(key[0] == k for key in found):
                break
        for start in pipeline.raw.init_times.astype("datetime64[s]").astype(np.int64).tolist():
            for lead in intervals:
                if not any((k, start, lead, number) in found for number in pipeline.raw.numbers):
                    raise InputError(
                        f"{forecasts[0]} has no {target} at +{lead // 60} h, only fields that it is computed from, and "
                        "NetCDF output replaces fields only; write a new GRIB file with format=grib"
                    )
    return found


def _stored_as(target: Variable) -> list[tuple[Variable, float]]:
    """Return the variables of files that may hold a target, each with the factor from it to the target."""
    return [(each.variables[0], each.factor) for each in sources(target) if len(each.variables) == 1]
