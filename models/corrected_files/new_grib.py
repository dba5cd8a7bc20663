"""New GRIB files: corrected members as GRIB2 messages, for forecasts that came in another format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_path
from data_pipeline.formats.grib.lattice import Lattice
from data_pipeline.formats.grib.scan import scan_messages
from data_pipeline.grids.points import Points
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import UNKNOWN
from data_pipeline.variables.parameters import PARAMETERS
from data_pipeline.writing import Encoder, HeaderMarks, Message, StatisticHeader, messages
from data_pipeline.writing.product import Product
from models.corrected_files.netcdf_output import corrected_forecasts
from models.corrected_files.target_messages import STEP_TYPES
from models.correction.pipeline import CorrectionPipelines

BITS = 24
"""Bits of a packed value, as many as the significand of single precision."""

_LOCAL = ("centre", "setLocalDefinition", "localDefinitionNumber")
"""Keys that give a message the local section of a centre; all other keys may belong to this section."""


def write_new_grib(pipelines: CorrectionPipelines, forecasts: Sequence[Path], output: Path) -> tuple[int, list[str]]:
    """Write the corrected members to a new GRIB2 file; return their number, and notes.

    Products follow the first member of their forecast and target. Member 0 is written as number 0. Grids that are not
    regular and parameters that ecCodes does not know raise `InputError`.
    """
    for pipeline in pipelines:
        if isinstance(grid := pipeline.engine.description.grid, Points):
            raise InputError(f"{forecasts[0]} has {grid}, which GRIB cannot hold here; write NetCDF with format=netcdf")
    written: list[Message] = []
    keys_given = pipelines[0].options.keys
    local = {name: keys_given[name] for name in _LOCAL if name in keys_given}
    further = {name: value for name, value in keys_given.items() if name not in local}
    header = HeaderMarks(mark=pipelines[0].options.mark, keys=further)
    messages_written = 0
    # In a local section, a message without a type would be an analysis.
    local |= {"type": "pf"} if "localDefinitionNumber" in local else {}
    encoders = [Encoder(pipeline.engine.description.grid, edition=2, **local) for pipeline in pipelines]
    with atomic_path(output) as partial:
        with partial.open("wb") as file:
            for number, corrected in corrected_forecasts(pipelines):
                assert corrected.members is not None
                pipeline = pipelines[number]
                for k, meaning in enumerate(pipeline.raw.meanings):
                    lead = pipeline.raw.lead_times.index(corrected.lead_time)
                    target, interval = pipeline.engine.description.task.targets[k], meaning.intervals[lead]
                    start, numbers = corrected.init_time.astype("datetime64[s]"), corrected.numbers
                    rounded = Lattice(BITS).round(corrected.members[:, k])
                    fields: list[tuple[int | Product, np.ndarray]] = [*zip(numbers, rounded, strict=True)]
                    fields[1:1] = [(one, values) for one, values in corrected.products if one.target == k]
                    count = len(numbers) or corrected.raw_members
                    for own, field in fields:
                        member = pipeline.raw.numbers[0] if isinstance(own, Product) else own
                        keys = _keys(target, start, corrected.lead_time, interval, member, count, forecasts[0])
                        keys |= _level_keys(target, meaning.level, forecasts[0])
                        try:
                            if isinstance(own, Product):
                                scale = 100 if own.threshold else 1  # probabilities are in per cent
                                message = encoders[number].encode(scale * field, **keys)
                                message = header.of_product(StatisticHeader(own, count, corrected.climate), message)
                            else:
                                message = encoders[number].encode(field, **keys)
                                message = message if corrected.method == "raw" else header(message)
                        except ValueError as error:
                            raise _cannot_write(forecasts[0], target, str(error)) from None
                        file.write(message)
                        messages_written += 1
                        if not isinstance(own, Product):
                            plain = Variable(target.name, target.level, process=target.process)
                            at = start.item().replace(tzinfo=None)
                            written.append(Message(plain, at, corrected.lead_time, own, interval))
        pipelines.refuse_nothing(output)
        found = [message._replace(init_time=message.init_time.replace(tzinfo=None)) for message in messages(partial)]
        if lost := next((one for one, other in zip(written, found, strict=False) if one != other), None):
            raise _cannot_write(forecasts[0], lost.variable, "it reads back as another field")
        if len(found) != len(written) or sum(1 for _ in scan_messages(partial)) != messages_written:
            raise RuntimeError(f"{output} differs from the written messages when read back; it was not kept")
    return len(written), [f"{output} holds the corrected fields only; all other fields of the input are left out"]


def _keys(
    target: Variable, start: np.datetime64, lead: int, interval: int, number: int, members: int, source: Path
) -> dict[str, object]:
    """Return the ecCodes keys of a message."""
    instant = target.processing == "instant"
    if not instant and interval == UNKNOWN:
        raise InputError(
            f"{source} does not state the intervals of {target}, which GRIB needs; add time bounds, or write NetCDF"
        )
    at = start.item()
    keys: dict[str, object] = {
        "productDefinitionTemplateNumber": 1 if instant else 11,
        "shortName": target.parameter,
        "dataDate": int(f"{at:%Y%m%d}"),
        "dataTime": int(f"{at:%H%M}"),
        "numberOfForecastsInEnsemble": members,
        "perturbationNumber": number,
        "endStep": lead,
        "bitsPerValue": BITS,
    }
    if not instant:
        keys |= {"stepType": STEP_TYPES[target.processing], "startStep": lead - interval // 60}
    return keys


def _level_keys(target: Variable, level: str, source: Path) -> dict[str, object]:
    """Return the ecCodes keys of the level of a message: a pressure, or the `level` of `Meaning`."""
    if target.level:
        return {"typeOfLevel": "isobaricInhPa", "level": target.level}
    if target.model_level:
        return {"typeOfLevel": level or "hybrid", "level": target.model_level}
    kind, _, value = level.partition(" ")
    if kind == "depth" or "-" in value:
        raise _cannot_write(source, target, f"layers and depths have other units in GRIB, and it lies on {level}")
    return {name: text for name, text in (("typeOfLevel", kind), ("level", value)) if text}


def _cannot_write(source: Path, variable: Variable, reason: str) -> InputError:
    known = "" if variable.name in PARAMETERS else ", no parameter of GRIB that is known here"
    return InputError(
        f"{variable} of {source}{known} cannot be written as GRIB ({reason}); write NetCDF with format=netcdf"
    )
