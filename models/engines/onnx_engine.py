"""OnnxEngine: computes corrected distributions with ONNX Runtime, from a file of `deepweather export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.common.threads import BUDGET
from data_pipeline.grids.points import grid_of_json
from data_pipeline.regridding.target import target_of
from data_pipeline.task import Task
from data_pipeline.variables.meaning import Meaning
from models.engines.engine import CorrectorDescription
from models.engines.families import KINDS, ByTargetArrays, EnsembleArrays, Family, Joined
from models.engines.forecast import RawForecast
from models.engines.onnx_file import INPUTS, ExportedFile, read_exported, unpack_mask
from models.parallel.domain import Domain
from models.provenance.envelope import Envelope
from models.provenance.training_climate import TrainingClimate

if TYPE_CHECKING:
    import xarray as xr

PATCHED, BY_TARGET = "Patched", "ByTarget"
"""Kinds of a distribution that is the raw ensemble in some cells, and of one that has a part for each target."""


class OnnxModel:
    """The graph of an exported file. `targets` are the positions of the targets in the channels."""

    def __init__(self, session: Any, details: Mapping[str, Any], targets: Sequence[int], threads: int) -> None:
        self._session, self._targets, self._threads = session, list(targets), threads
        self._outputs, self._structure = list(details["outputs"]), details["distribution"]
        self._inputs = [found.name for found in session.get_inputs()]
        if unknown := [name for name in self._inputs if name not in INPUTS]:
            raise ValueError(f"its graph has the unknown input {unknown[0]}")
        if {found.name for found in session.get_outputs()} != {*self._outputs}:
            raise ValueError("its graph has other outputs than its description")
        _check_structure(self._structure, self._outputs)

    @classmethod
    def of(cls, content: bytes, details: Mapping[str, Any], targets: Sequence[int]) -> OnnxModel:
        """Return the model of a file whose content `read_exported` has checked."""
        with package("an exported corrector", "train"):
            import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = BUDGET.total, 1
        options.log_severity_level = 4
        # Threads that spin while they wait take the processors of other programs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        return cls(session, details, targets, BUDGET.total)

    def predict(self, ensemble: np.ndarray, mask: np.ndarray, start: int, lead_time: int) -> FamilyPrediction:
        """Return the forecast for an ensemble (M, C, H, W) with its mask (C, H, W) in physical units.

        `start` counts seconds since 1970, `lead_time` hours.
        """
        given = dict(zip(INPUTS, (ensemble, mask, np.int64(start), np.int64(lead_time)), strict=True))
        feeds = {name: np.ascontiguousarray(np.asarray(given[name])[None]) for name in self._inputs}
        with BUDGET.borrow(self._threads):
            values = self._session.run(self._outputs, feeds)
        found = dict(zip(self._outputs, values, strict=True))
        shape = len(self._targets), *ensemble.shape[-2:]
        structure = self._structure
        if structure["kind"] != PATCHED:
            return FamilyPrediction(_family(structure, found, shape))
        raw = EnsembleArrays(ensemble[:, self._targets].astype(np.float64))
        return FamilyPrediction(_family(structure["inner"], found, shape), ~found[structure["where"]], raw)


@dataclass(frozen=True, eq=False)
class FamilyPrediction(Joined):
    """Implements `Prediction`: a distribution, and the raw ensemble in the cells where it is `unchanged`."""

    family: Family
    unchanged: np.ndarray | None = None
    raw: EnsembleArrays | None = None

    @property
    def members(self) -> np.ndarray | None:
        """The members (M, T, H, W), if the model forecasts members."""
        if not isinstance(self.family, EnsembleArrays):
            return None
        return self._joined(lambda family: family.members)

    def _joined(self, compute: Callable[[Any], np.ndarray]) -> np.ndarray:
        found = compute(self.family)
        if self.raw is None or self.unchanged is None:
            return found
        return np.where(self.unchanged, compute(self.raw), found)


def _check_structure(structure: Any, outputs: Sequence[str]) -> None:
    """Raise an error unless every part of the distribution is known and every parameter is an output."""
    kind = structure["kind"]
    if kind == PATCHED:
        if structure["where"] not in outputs:
            raise ValueError("its distribution has no mask")
        return _check_structure(structure["inner"], outputs)
    if kind == BY_TARGET:
        for k in set(structure["index"]):
            _check_structure(structure[f"part{int(k)}"], outputs)
        return None
    if kind not in KINDS:
        raise ValueError(f"its distribution is an unknown {kind}")
    if kind == "PowerTransformed":
        _check_structure(structure["inner"], outputs)
        if not 0 < float(structure["power"]) <= 1:
            raise ValueError(f"its distribution has the power {structure['power']}")
    wanted = {field.name for field in fields(KINDS[kind])} - {"inner", "power"}
    for name in wanted - ({"lower"} if kind in ("Normal", "Logistic") else set()):
        if structure[name] not in outputs:
            raise ValueError(f"its distribution has no {name}")


def _family(structure: Mapping[str, Any], found: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> Family:
    """Return the distribution over cells of `shape` from the outputs of the graph."""
    if structure["kind"] == BY_TARGET:
        return ByTargetArrays([_family(structure[f"part{k}"], found, shape) for k in structure["index"]])
    parameters: dict[str, Any] = {}
    for name, value in structure.items():
        if isinstance(value, Mapping):
            parameters[name] = _family(value, found, shape)
        elif isinstance(value, str) and name != "kind":
            array = found[value].astype(np.float64)
            parameters[name] = array if name == "levels" or array.ndim > 3 else np.broadcast_to(array, shape)
        elif name != "kind":
            parameters[name] = value
    made: Family = KINDS[structure["kind"]](**parameters)
    return made


class OnnxEngine:
    """An `Engine` on the whole grid, in ONNX Runtime; raises `InputError` for a file that is no exported corrector."""

    def __init__(self, path: Path, name: str = "") -> None:
        exported, self._arguments = read_exported(path), (path, name)
        try:
            self.description = describe_exported(exported, name, path)
            task, grid = self.description.task, self.description.grid
            self.domain = Domain.of(grid)
            self.always = unpack_mask(exported.details["always"], (len(task.channels), *grid.shape))
            self.known = unpack_mask(exported.details["known"], (len(task.targets), *grid.shape))
            self._climate = exported.details["climate"]
            self._model = OnnxModel.of(exported.content, exported.details, task.target_channels)
        except InputError as error:
            raise error if str(path) in str(error) else InputError(f"{path}: {error}") from None
        except Exception as error:  # ONNX Runtime has its own classes of errors, without a common base
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"{path} is not a valid exported corrector ({type(error).__name__}: {reason}); export it again"
            ) from None

    def __reduce__(self) -> tuple[type[OnnxEngine], tuple[Path, str]]:
        """Another process reads the file again."""
        return OnnxEngine, self._arguments

    @property
    def climate(self) -> TrainingClimate | None:
        """The training climate of the inputs; None for a model that reads physical values."""
        if self._climate is None:
            return None
        shape = len(self.description.task.channels), *self.description.grid.shape
        try:
            return TrainingClimate.unpack(self._climate, shape)
        except ValueError as error:
            raise InputError(
                f"{self.description.path} is not a valid exported corrector: {error}; export it again"
            ) from None

    def at(self, domain: Domain, static: xr.Dataset | None = None) -> OnnxEngine:
        """Raise `InputError`: the graph holds the numbers of its own stations."""
        raise InputError(
            f"{self.description.path} is exported for {self.description.grid}, the input has {domain.grid}; name the "
            "corrector file that it was exported from, or export the result of Corrector.at(points).save(FILE)"
        )

    def predict(self, forecast: RawForecast) -> FamilyPrediction:
        """Return the corrected distribution of a forecast."""
        description = self.description
        if forecast.lead_time not in description.task.lead_times:
            known = ", ".join(map(str, description.task.lead_times))
            raise InputError(f"lead time {forecast.lead_time} h is not one of task {description.task.name} ({known} h)")
        if len(forecast.ensemble) < 2:
            raise InputError(
                f"the forecast of {forecast.init_time} +{forecast.lead_time} h has one member, and an exported "
                f"corrector needs at least two; use the corrector file that {description.path} was exported from"
            )
        start = int(forecast.init_time.astype("datetime64[s]").astype(np.int64))
        try:
            return self._model.predict(forecast.ensemble, forecast.mask, start, forecast.lead_time)
        except RuntimeError as error:  # the base of the errors of ONNX Runtime while it computes
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"{description.path} cannot correct the forecast of {forecast.init_time} +{forecast.lead_time} h with "
                f"{len(forecast.ensemble)} members ({reason}); use the corrector file that it was exported from"
            ) from None


def describe_exported(exported: ExportedFile, name: str, path: Path) -> CorrectorDescription:
    """Return the description of the corrector that was exported."""
    values = exported.description
    grid, provenance = grid_of_json(values["grid"]), dict(values["provenance"])
    return CorrectorDescription(
        task=Task(**values["task"]),
        grid=grid,
        meanings=tuple(Meaning.from_json(each) for each in values["meanings"]),
        provenance=provenance,
        target_grid=target_of(grid, provenance.get("regridding")),
        name=name,
        path=path,
        sha256=exported.sha256,
        envelope=Envelope.from_json(values.get("envelope")),
    )
