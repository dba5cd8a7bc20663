"""Write a corrector as an ONNX model: normaliser, grid and static fields inside, checked against PyTorch.

The graph takes the raw ensemble in physical units and returns the parameters of the corrected distribution, also in
physical units; `models.engines.families` has the distributions. Any number of members from two on can be corrected.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.common.files import atomic_write
from data_pipeline.common.identity import sha256_of, sha256_of_bytes
from data_pipeline.common.progress import Progress
from data_pipeline.sample import Sample
from models.corrector import Corrector
from models.distribution import Distribution, Empirical
from models.engines.families import KINDS
from models.engines.onnx_engine import OnnxModel
from models.engines.onnx_file import (
    DESCRIPTION,
    DETAILS,
    EXPORT_FORMAT,
    INPUTS,
    LARGEST_FILE,
    PRODUCER,
    pack_mask,
    read_exported,
)
from models.engines.torch_engine import training_cells
from models.provenance.training_climate import TrainingClimate

OPSET = 20
"""Version of the ONNX operators: ONNX Runtime 1.17 (2024) and later have it."""
_PREFIX = "out_"
"""Prefix of the names of outputs, which must differ from the names of operations."""
_STARTS = (951782400, 1594771200)
"""29 February 2000 and 15 July 2020, 00 UTC."""
_WAVES = 4
MEMBERS_FIRST = ("members", "coefficients", "values")
"""Parameters with a dimension before the batch."""


class Graph(nn.Module):
    """A corrector as a function from `INPUTS` to the parameters of its distribution, without the batch dimension."""

    def __init__(self, corrector: Corrector) -> None:
        super().__init__()
        self.corrector = corrector
        self.structure: dict[str, Any] = {}
        """Kind and parameters of the distribution; set by `forward`. A text is the name of an output."""
        self.outputs: tuple[str, ...] = ()

    def forward(self, ensemble: Tensor, mask: Tensor, init_time: Tensor, lead_time: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters, (T, H, W) or (N, T, H, W)."""
        target = ensemble.new_zeros((1, len(self.corrector.task.targets), *ensemble.shape[-2:]))
        sample = Sample(ensemble, mask, self.corrector.static[None], target, init_time, lead_time)
        found: dict[str, Tensor] = {}
        self.structure = _structure(self.corrector(sample), found)
        self.outputs = tuple(found)
        return tuple(found.values())


@dataclass(frozen=True)
class Equality:
    """Result of the comparison with PyTorch: the largest differences of each target, in its units.

    `share_of_tolerance` is the largest ratio of a difference to its `Tolerance`, below 1.
    """

    inputs: int
    member_counts: tuple[int, ...]
    largest_difference: dict[str, float]
    share_of_tolerance: float


@dataclass(frozen=True)
class Tolerance:
    """How much values (K, T, H, W) may differ: by 1e-4 of the normaliser's scale, for temperature about 0.001 K.

    Far from the climate, random inputs can give forecasts of any size: there 1e-5 of the distance is allowed. For large
    values, such as 50,000 m² s⁻², a step of single precision is larger than any error of a model: 8 steps are allowed.
    """

    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, corrector: Corrector) -> Tolerance:
        """Return the tolerance for the normaliser of a corrector, or of the first network of a committee."""
        used = [*corrector.fitted_normalizers, corrector.normalizer][0]
        location = used.target_scaling[0]
        law = used.physical(Empirical(torch.stack([torch.zeros_like(location), torch.ones_like(location)])))
        low, high = law.quantile(torch.tensor([0.0, 1.0])).double().numpy()
        return cls(low, np.maximum(high - low, 1e-12))

    def share(self, found: np.ndarray, reference: np.ndarray) -> np.ndarray:
        """Return the ratio of each value's difference to its tolerance."""
        single = 8 * np.finfo(np.float32).eps * np.abs(reference)
        allowed = 1e-4 * self.scale + 1e-5 * np.abs(reference - self.centre) + single
        share: np.ndarray = np.abs(found - reference) / allowed
        return share


def export(path: Path, output: Path) -> Equality:
    """Write the corrector in the file `path` to the ONNX file `output`, unless the two differ.

    Raises `InputError` for a distribution that cannot be exported, and for differences above `Tolerance`.
    """
    with Progress("reading the corrector"):
        corrector = Corrector.load(path)
        refuse_unknown_kind(path, corrector)
    with safe_open(path, framework="pt") as file:
        description = file.metadata()[DESCRIPTION]
    graph = Graph(corrector).eval()
    with Progress("translation to ONNX"):
        program = _translate(path, graph)
    model = program.model_proto
    always, known = training_cells(corrector)
    details: dict[str, Any] = {
        "format": EXPORT_FORMAT,
        "graph_sha256": sha256_of_bytes(model.graph.SerializeToString(deterministic=True)),
        "source": {"name": path.name, "sha256": sha256_of(path)},
        "torch": torch.__version__.partition("+")[0],
        "outputs": list(graph.outputs),
        "distribution": graph.structure,
        "always": pack_mask(always.numpy() != 0),
        "known": pack_mask(known.numpy() != 0),
        "climate": _climate(corrector),
    }
    content = _with_metadata(path, model, {DESCRIPTION: description, DETAILS: json.dumps(details)})
    equality = compare(path, corrector, OnnxModel.of(content, details, corrector.task.target_channels))
    details["equality"] = asdict(equality)
    content = _with_metadata(path, model, {DESCRIPTION: description, DETAILS: json.dumps(details)})
    with atomic_write(output) as part:
        part.write(content)
    read_exported(output)
    return equality


def _climate(corrector: Corrector) -> dict[str, Any] | None:
    """Return the training climate of the inputs as plain values; None for a model that reads physical values."""
    normalizers = corrector.fitted_normalizers
    return TrainingClimate.of(normalizers, corrector.task.target_channels).pack() if normalizers else None


def refuse_unknown_kind(path: Path, corrector: Corrector) -> None:
    """Raise `InputError` for a distribution whose quantiles NumPy cannot compute."""
    sample = next(check_inputs(corrector, [2]))
    with torch.no_grad():
        _structure(corrector(sample), {}, path)


def compare(path: Path, corrector: Corrector, model: OnnxModel, counts: tuple[int, ...] = (2, 3, 8)) -> Equality:
    """Compare quantiles on random and on realistic forecasts with `counts` members.

    Raises `InputError` for a difference above `Tolerance`.
    """
    levels, tolerance = np.array([0.05, 0.5, 0.95]), Tolerance.of(corrector)
    names = [str(target) for target in corrector.task.targets]
    largest, share, inputs = np.zeros(len(names)), np.zeros(len(names)), 0
    for sample in check_inputs(corrector, counts):
        inputs += 1
        with torch.no_grad():
            reference = corrector(sample).quantile(torch.tensor(levels))[:, 0].double().numpy()
        ensemble, mask = sample.ensemble[0].numpy(), sample.mask[0].numpy()
        forecast = model.predict(ensemble, mask, int(sample.init_time[0]), int(sample.lead_time[0]))
        found = forecast.quantiles(levels)
        covered = mask[list(corrector.task.target_channels)] & np.isfinite(reference)
        if not np.isfinite(found[covered]).all():
            raise InputError(
                f"{path} cannot be exported: ONNX Runtime gives no value in cells where PyTorch does; use the file "
                "itself"
            )
        with np.errstate(invalid="ignore"):
            largest = np.maximum(largest, np.where(covered, np.abs(found - reference), 0).max((0, 2, 3)))
            share = np.maximum(share, np.where(covered, tolerance.share(found, reference), 0).max((0, 2, 3)))
    if share.max() > 1:
        worst = int(share.argmax())
        raise InputError(
            f"{path} cannot be exported: ONNX Runtime and PyTorch differ by up to {largest[worst]:.3g} "
            f"{corrector.task.targets[worst].units} in {names[worst]}; use the file itself"
        )
    return Equality(inputs, tuple(counts), dict(zip(names, largest.tolist(), strict=True)), float(share.max()))


def _structure(distribution: Distribution, found: dict[str, Tensor], path: Path | None = None) -> dict[str, Any]:
    """Return kind and parameters of a distribution; add its tensors, without the batch, to `found`."""
    form = distribution.export_form()
    if form is None:
        raise InputError(
            f"{path} forecasts a {distribution.core.name}, and only {', '.join(KINDS)} can be exported; train a "
            "corrector with another head or family, or use the file itself"
        )
    return _named(form, found)


def _named(form: Mapping[str, Any], found: dict[str, Tensor]) -> dict[str, Any]:
    """Return the form with the names of outputs instead of tensors, which are added to `found`."""
    structure: dict[str, Any] = {}
    for key, value in form.items():
        if isinstance(value, Mapping):
            structure[key] = _named(value, found)
        elif isinstance(value, Tensor):
            name = _PREFIX + key
            while name in found:
                name += "_of_part"
            found[name] = _without_batch(key, value)
            structure[key] = name
        else:
            structure[key] = value
    return structure


def _without_batch(name: str, value: Tensor) -> Tensor:
    if name in MEMBERS_FIRST:
        return value[:, 0]
    return value[0] if value.ndim == 4 else value


def _translate(path: Path, graph: Graph) -> Any:
    """Return the ONNX program of a graph."""
    sample = next(check_inputs(graph.corrector, [3]))
    arguments = tuple(getattr(sample, name) for name in INPUTS)
    members = torch.export.Dim("members", min=2)
    with package("export", "train"):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    try:
        with torch.no_grad(), _quiet():
            graph(*arguments)  # sets the names of the outputs
            traced = torch.export.export(graph, arguments, dynamic_shapes=({1: members}, None, None, None))
            traced = traced.run_decompositions(_decompositions())
            return torch.onnx.export(
                traced, input_names=list(INPUTS), output_names=list(graph.outputs), dynamo=True, optimize=True,
                opset_version=OPSET, verbose=False,
            )  # fmt: skip
    except Exception as error:  # the exporter raises many kinds of errors for operations that ONNX lacks
        reason = str(error).strip().splitlines()
        raise InputError(
            f"{path} cannot be exported: its model {type(graph.corrector.model).__name__} has an operation that cannot "
            f"be translated to ONNX ({type(error).__name__}: {reason[0][:200] if reason else 'no message'}); use the "
            "file itself"
        ) from error


def _decompositions() -> dict[Any, Any]:
    """Return operations that ONNX lacks, in terms of others."""

    def hypot(a: Tensor, b: Tensor) -> Tensor:
        return torch.sqrt(a * a + b * b)

    def cummax(values: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        found = list(values.unbind(dim)[:1])
        for value in values.unbind(dim)[1:]:
            found.append(torch.maximum(found[-1], value))
        stacked = torch.stack(found, dim)
        return stacked, torch.zeros_like(stacked, dtype=torch.int64)  # no model reads the positions

    return {torch.ops.aten.hypot.default: hypot, torch.ops.aten.cummax.default: cummax}


def _with_metadata(path: Path, model: Any, metadata: dict[str, str]) -> bytes:
    """Return the bytes of a model with its metadata."""
    model.producer_name, model.producer_version = PRODUCER, ""
    del model.metadata_props[:]
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    if model.ByteSize() > LARGEST_FILE:
        raise InputError(f"{path} cannot be exported: its weights exceed the 2 GB of an ONNX file; use the file itself")
    content: bytes = model.SerializeToString(deterministic=True)
    return content


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's notes on its own progress."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def check_inputs(corrector: Corrector, counts: Sequence[int]) -> Iterator[Sample]:
    """Yield a random and a realistic forecast, as batches of one, for each number in `counts`, start and lead time.

    Random: independent noise in every cell, as large as the normaliser's departures. Realistic: waves of a few thousand
    kilometres that members share, smaller waves of each member, and a tenth of the cells without values.
    """
    task, grid = corrector.task, corrector.grid
    draw = torch.Generator().manual_seed(0)
    # Without a fitted normaliser, these are mean and departure of a unit variable.
    used = [*corrector.fitted_normalizers, corrector.normalizer][0]
    location, scale = used.location, used.scale[:, None, None]
    lower, upper = (_bounds(corrector, side) for side in (0, 1))
    leads = dict.fromkeys((task.lead_times[0], task.lead_times[-1]))
    kinds = [(s, h, real) for s in _STARTS for h in leads for real in (False, True)]
    with Progress("comparison with PyTorch: forecast", len(counts) * len(kinds)) as progress:
        for count, (start, lead, realistic) in product(counts, kinds):
            shape = count, len(location), *grid.shape
            if realistic:
                departure = _waves((1, *shape[1:]), draw) + 0.3 * _waves(shape, draw)
            else:
                departure = torch.randn(shape, generator=draw)
            ensemble = torch.minimum(torch.maximum(location + scale * departure, lower), upper)
            mask = torch.ones(shape[1:], dtype=torch.bool)
            if realistic:
                mask = torch.rand(shape[1:], generator=draw) > 0.1
                ensemble = torch.where(mask, ensemble, torch.nan)
            yield Sample(
                ensemble[None], mask[None], corrector.static[None],
                torch.full((1, len(task.targets), *grid.shape), torch.nan),
                torch.tensor([start]), torch.tensor([lead]),
            )  # fmt: skip
            progress.step()


def _bounds(corrector: Corrector, side: int) -> Tensor:
    missing = (-math.inf, math.inf)[side]
    limits = [channel.variable.bounds[side] for channel in corrector.task.channels]
    return torch.tensor([missing if limit is None else limit for limit in limits])[:, None, None]


def _waves(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    """Return smooth fields (M, C, H, W) of standard deviation 1."""
    *outer, H, W = shape
    rows, columns = torch.arange(H) / H, torch.arange(W) / W
    total = torch.zeros(shape)
    for wave in range(1, _WAVES + 1):
        phase = 2 * math.pi * torch.rand((2, *outer, 1, 1), generator=draw)
        along = torch.cos(2 * math.pi * wave * columns + phase[0])
        total += along * torch.cos(math.pi * wave * rows[:, None] + phase[1])
    return total * (2 / math.sqrt(_WAVES))
