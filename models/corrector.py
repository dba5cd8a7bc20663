"""Corrector: task, grid, normaliser and model as one object and as one file.

Physical units in, physical units out. The file holds tensors and JSON (safetensors). Loading it runs no code from the
file, only classes that it names in `models` and in registered packages (`models.construct`).
"""

from __future__ import annotations

import inspect
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils.data import Dataset

from data_pipeline.common.checks import construct, per_target
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_write
from data_pipeline.common.progress import Progress
from data_pipeline.dataset import ForecastDataset, batches
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points, grid_of_json
from data_pipeline.protocols import ALL, MeasuredDataset
from data_pipeline.regridding.target import TargetGrid, target_of
from data_pipeline.sample import Sample, forecast_times, latitude_band, select_channels
from data_pipeline.statistics.normalization import NormalizationData
from data_pipeline.task import Channel, Task
from data_pipeline.variables.meaning import Meaning
from models import protocol
from models.construct import model_class
from models.corrector_file import plain_json, read_header
from models.corrector_summary import as_html, as_text, summary_rows, unfitted_notes
from models.distribution import Distribution, Ensemble, Patched
from models.laws import with_laws
from models.normalizer import Normalizer
from models.outline import check_finite, check_tensors, limited_modules, outline
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.provenance.envelope import Envelope
from models.provenance.noise import Noise
from models.provenance.training_dates import state_fits, valid_days
from models.provenance.training_summaries import TrainingSummaries, envelope_of
from models.statistical.cases import Passes, check_lead_times, count_unfitted
from models.statistical.new_stations import NewStations

if TYPE_CHECKING:
    import xarray as xr

FILE_FORMAT = 2
NOISE = "noise"
"""Name of the tensor and of the entry of the description that hold the noise."""
BATCH_BYTES = 2**27
"""Bytes of samples that a fit reads at a time."""


class Corrector(nn.Module):
    """A model with everything that it needs to correct a forecast.

    `spec` describes the model (`_target_` and hyper-parameters); options that follow from the targets (`with_laws`) are
    filled in. `static` are its static fields in physical units.
    `provenance` records the training; evaluation refuses dates that it lists as training or validation dates.
    `meanings` are units, levels and intervals of the task's channels in the training data. On a domain of several
    ranks, inputs and outputs cover this rank's tile; state and file cover the whole globe.
    """

    static: Tensor

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        spec: dict[str, Any],
        static: Tensor,
        provenance: dict | None = None,
        meanings: Sequence[Meaning] = (),
        envelope: Envelope | None = None,
    ) -> None:
        super().__init__()
        self.meanings = tuple(meanings)
        self.domain = Domain.of(grid)
        self.task, self.grid, self.provenance = task, self.domain.grid, dict(provenance or {})
        self.spec = spec = with_laws(spec, task)
        self.model = build_model(spec, task, grid)
        if "power" in spec and protocol.claims(self.model).physical:
            raise InputError(f"model {type(self.model).__name__} gets physical values; remove model.power")
        self.normalizer = Normalizer.of_model(spec, task, grid)
        self.register_buffer("static", static.clone())
        self._learns = any(True for _ in self.model.parameters())
        self.envelope = envelope
        """The envelope of the training data; None before a fit, and for a model that reads physical values."""
        self.noise: Noise | None = None
        """What `members=noise` draws from."""
        self.notes: list[str] = []
        """Notes of the fit for the user, one sentence each."""
        moved = self.provenance.get("stations")
        self.new_stations = None if moved is None else NewStations(task, self.domain, moved)

    @property
    def target_grid(self) -> TargetGrid | None:
        """The grid to which forecasts on other grids are brought; None if the training data had it already."""
        return target_of(self.grid, self.provenance.get("regridding"))

    @property
    def fitted_parts(self) -> tuple[str, ...]:
        """The names of all parts that `fit` fits: the normaliser, the model, and its fitted modules with a state."""
        own = () if protocol.claims(self.model).physical else ("normalizer",)
        if not isinstance(self.model, protocol.Fittable):
            return own
        modules = [
            f"model.{name}"
            for name, module in self.model.named_modules()
            if name and module.state_dict() and isinstance(module, protocol.Fittable)
        ]
        return *own, "model", *modules

    @property
    def fitted_normalizers(self) -> list[Normalizer]:
        """The normalisers of this corrector and of its parts, without those of models that read physical values."""
        parts = [part for part in self.modules() if isinstance(part, Corrector)]
        return [part.normalizer for part in parts if not protocol.claims(part.model).physical]

    def forward(self, sample: Sample) -> Distribution:
        """Return the corrected distribution over (B, T, H, W) in physical units.

        In cells without any training value, the output of a network is replaced by the raw ensemble.
        """
        if sample.lead_time.device.type == "cpu" and not torch.compiler.is_compiling():
            check_lead_times(sample.lead_time, self.task)
        corrected: Distribution = self.normalizer.physical(self.model(self.normalizer(sample)))

        def raw() -> Ensemble:
            return Ensemble(select_channels(sample.ensemble, self.task.target_channels, 2).movedim(1, 0))

        if not self.normalizer.complete and self._learns:
            corrected = Patched(self.domain.cut(self.normalizer.known) > 0, corrected, raw())
        return corrected if self.new_stations is None else self.new_stations(corrected, sample, raw)

    def __repr__(self) -> str:
        return as_text(summary_rows(self.task, self.grid, self.spec, self.provenance))

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        return as_html(summary_rows(self.task, self.grid, self.spec, self.provenance))

    def correct(
        self,
        dataset: xr.Dataset,
        *,
        analysis: xr.Dataset | None = None,
        names: Mapping[str, str] | None = None,
        members: str = "ecc-q",
        member_count: int | None = None,
        quantile_levels: str = "hazen",
        products: Sequence[str] | None = None,
        history: str | Sequence[str] | None = None,
        reforecasts: str | Sequence[str] | None = None,
        stations: Points | None = None,
        static_fields: xr.Dataset | None = None,
        seed: int = 0,
        on_problem: str = "error",
        untrained_times: str = "problem",
        fallback: Corrector | None = None,
        device: str = "auto",
    ) -> xr.Dataset:
        """Return forecasts with corrected members in place of the raw ones: the verb `correct` on a dataset of xarray.

        `dataset` has the dimensions init_time, lead_time, number, latitude, longitude, and level (hPa) for variables
        aloft, or usual other names of these, and all inputs of the task; `names` maps its names of variables to GRIB
        names. The result has the same dimensions, names, units and types, and is lazy if `dataset` is: each forecast
        is corrected when dask computes it. See `models.correction.correct_dataset` for what stays as it is.

        `analysis` is for correctors that read it at the start. The other options are options of `deepweather correct`;
        `fallback` is the corrector for `on_problem="emos"`. With `member_count`, the result has the corrected fields
        only. A corrector of stations that was trained with forecasts on a grid reads them at its stations, or at
        `stations`, for which `static_fields` are land-sea mask and surface height of the forecast model.
        """
        # Imported here, because only this method of the module depends on engines and corrections.
        from models.correction.correct_dataset import correct_dataset
        from models.correction.guards import Guard
        from models.engines.torch_engine import TorchEngine

        guard = Guard(on_problem, None if fallback is None else TorchEngine.of(fallback, device), untrained_times)
        return correct_dataset(
            TorchEngine.of(self, device), dataset, analysis, names, guard, history, reforecasts,
            stations=stations, static_fields=static_fields,
            members=members, member_count=member_count, quantile_levels=quantile_levels, seed=seed,
            products=products,
        )  # fmt: skip

    def on(self, domain: Grid | Domain) -> Corrector:
        """Return this corrector for this rank's tile of `domain`."""
        if self.domain.ranks == Domain.of(domain).ranks == 1:
            return self
        other = Corrector(self.task, domain, self.spec, self.static, self.provenance, self.meanings)
        other.load_state_dict(self.state_dict())
        other.envelope, other.noise = self.envelope, self.noise
        return other.train(self.training)

    def at(self, points: Points, static: xr.Dataset | None = None) -> Corrector:
        """Return this corrector of stations for other stations; those that it knows keep their correction.

        At other stations, all numbers that it has for each station are predicted from the stations that it knows
        (`models.moved_stations`). `static` are the static fields of the task at these stations, if it has any beside
        position and altitude.

        Raises `InputError` for a corrector on a grid, for less than five known stations, and if a field is missing.
        """
        # Imported here, because only this method of the module depends on the prediction.
        from models.moved_stations import moved_to

        return moved_to(self, points, static)

    def bind(self, task: Task) -> Callable[[Sample], Distribution]:
        """Return a function that corrects samples of `task`, which may have more channels and targets."""
        if task == self.task:
            return self
        return lambda sample: self(narrow(sample, task, self.task))

    def fit(
        self, dataset: Dataset[Sample], batch_size: int = 8, normalization: NormalizationData | None = None
    ) -> None:
        """Fit the normaliser, then the parts of the model that are fitted before the first training step.

        With the `normalization` of the same samples, normaliser and envelope are taken from it, and the samples are not
        read for them. Progress is shown.

        A model that claims `physical` gets values in physical units. `notes` holds notes of the fit. In the provenance,
        `unfitted` has the counts of `count_unfitted`, of one regression for each lead time, target and cell with
        training cases; `choices` has `FitReport.choices`; `fits` has the valid days of all `fitted_parts`.
        """
        times = forecast_times(dataset)

        def read(what: str, rows: slice = ALL) -> Iterator[Sample]:
            with Progress(f"fit of {what}: forecast", len(times[0])) as progress:
                yield from counted(in_batches(dataset, rows, batch_size), progress)

        passes = Passes(partial(read, type(self.model).__name__), self.domain.own_shape[0], *times)
        self.fit_passes(passes, normalization, read("the normaliser"))

    def fit_passes(
        self, passes: Passes, normalization: NormalizationData | None = None, first: Iterator[Sample] | None = None
    ) -> None:
        """Fit as `fit` does, to passes over samples in physical units; `first` is the pass of the normaliser."""
        physical = protocol.claims(self.model).physical
        if normalization is not None:
            if not physical:
                self.normalizer.set_normalization(normalization, self.static)
            self.envelope = envelope_of(
                self.task, normalization.summaries, normalization.starts, normalization.lead_times,
                normalization.members,
            )  # fmt: skip
        elif not physical or isinstance(self.model, protocol.Fittable):
            seen = TrainingSummaries(self.domain)
            batches = seen.watch(iter(passes) if first is None else first)
            if physical:
                deque(batches, maxlen=0)
            else:
                self.normalizer.fit(batches)
            self.envelope = seen.envelope(self.task, self.provenance.get("members"))
        protocol.normalise(self.model, *self.normalizer.target_scaling)
        normalised = replace(passes, begin=lambda rows: (self.normalizer(batch, rows) for batch in passes.begin(rows)))
        protocol.fit(self.model, passes if physical else normalised)
        if self.task.systems:
            self.provenance["any_groups"] = protocol.claims(self.model).any_groups
        state_fits(self.provenance, dict.fromkeys(self.fitted_parts, valid_days(passes.init_time, passes.lead_time)))
        reports = protocol.fit_reports(self)
        self.notes = list(dict.fromkeys(note for report in reports for note in report.notes))
        if counts := count_unfitted(reports):
            self.provenance["unfitted"] = counts
            self.notes += unfitted_notes(counts)
        if choices := [choice for report in reports for choice in report.choices]:
            self.provenance["choices"] = choices

    def save(self, path: str | Path) -> None:
        """Write the corrector file."""
        description = {
            "format": FILE_FORMAT,
            "task": self.task.to_json(),
            "grid": asdict(self.grid),
            "model": self.spec,
            "provenance": self.provenance,
            "meanings": [meaning.to_json() for meaning in self.meanings],
        }
        if self.envelope is not None:
            description["envelope"] = self.envelope.to_json()
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        if self.noise is not None:
            description["noise"] = self.noise.to_json()
            tensors[NOISE] = torch.from_numpy(self.noise.errors)
        # The file writer of safetensors does not raise OSError when the disk is full.
        with atomic_write(path) as file:
            file.write(save(tensors, {"deepweather": json.dumps(description)}))

    @classmethod
    def load(cls, path: str | Path) -> Corrector:
        """Return the corrector in a file. Raises `InputError` if the file is missing, damaged or not a corrector."""
        every, description = read_header(path)
        shapes = {name: shape for name, shape in every.items() if name != NOISE}
        build = _read_description(cls, path, description, shapes.get("static"))
        # Checked before memory is allocated for the model, and before its tensors are read.
        try:
            with limited_modules(path, len(shapes)):
                drawn = outline(build)
            if drawn is not None:
                check_tensors(path, type(drawn.model).__name__, drawn, shapes)
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in every}
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{path} is not a complete safetensors file ({error}); train the corrector again"
            ) from None
        except InputError as error:
            raise _naming(path, error) from None
        errors = tensors.pop(NOISE, None)
        check_finite(path, tensors)
        build.keywords["static"] = tensors["static"]
        try:
            corrector: Corrector = build()
        except InputError as error:
            raise _naming(path, error) from None
        try:
            corrector.load_state_dict(tensors)
        except RuntimeError:
            model = type(corrector.model).__name__
            raise InputError(
                f"{path} holds a model {model} of an incompatible version; train the corrector again"
            ) from None
        corrector.noise = _read_noise(path, description, errors, corrector)
        return corrector.eval()


def counted(batches: Iterator[Sample], progress: Progress) -> Iterator[Sample]:
    """Yield the batches, and count their samples."""
    for batch in batches:
        yield batch
        progress.reach(progress.done + len(batch.mask))


def in_batches(dataset: Dataset[Sample], rows: slice, size: int) -> Iterator[Sample]:
    """Yield some `rows` of all samples, in batches of at most `size` samples and about `BATCH_BYTES` bytes."""
    part = latitude_band(dataset, rows)
    if len(part) and size > 1 and isinstance(part, MeasuredDataset):  # type: ignore[arg-type]
        size = max(1, min(size, BATCH_BYTES // max(part.nbytes, 1)))
    return batches(part, size)


def _read_description(
    cls: type[Corrector], path: str | Path, text: str, static: tuple[int, ...] | None
) -> partial[Corrector]:
    """Return a function that builds the corrector described in the file `path`, without its tensors."""
    try:
        description = plain_json(text)
        if (version := description["format"]) != FILE_FORMAT:
            raise InputError(
                f"{path} has format {version}, this version reads {FILE_FORMAT}; train the corrector again"
            )
        task, grid = Task(**description["task"]), grid_of_json(description["grid"])
        spec, provenance = dict(description["model"]), dict(description["provenance"])
        meanings = [Meaning.from_json(values) for values in description["meanings"]]
        envelope = Envelope.from_json(description.get("envelope"))
        model_class(spec.get("_target_"))
    except InputError as error:
        raise _naming(path, error) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} has an invalid description of its corrector ({type(error).__name__}: {error}); train the "
            "corrector again"
        ) from None
    if static is None or static != (len(task.static_names), *grid.shape):
        found = "none" if static is None else "x".join(map(str, static))
        wanted = "x".join(map(str, (len(task.static_names), *grid.shape)))
        raise InputError(f"{path} must hold static fields of shape {wanted}, it has {found}; train the corrector again")
    blank = torch.empty(static, device="meta")
    return partial(
        cls, task=task, grid=grid, spec=spec, static=blank, provenance=provenance, meanings=meanings, envelope=envelope
    )


def _read_noise(path: str | Path, text: str, errors: Tensor | None, corrector: Corrector) -> Noise | None:
    """Return the noise of a corrector file, None without one."""
    values = plain_json(text).get(NOISE)
    if values is None and errors is None:
        return None
    try:
        if errors is None or errors.shape[2:] != corrector.grid.shape:
            raise ValueError("its noise has another grid")
        return Noise.from_json(values, errors.numpy(), corrector.task)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path} has invalid noise ({error}); train the corrector again") from None


def _naming(path: str | Path, error: InputError) -> InputError:
    """Return an error whose sentence names the file."""
    return error if str(path) in str(error) else InputError(f"{path}: {error}")


REFERENCES: dict[str, dict[str, Any]] = {
    "raw": {"_target_": "models.statistical.raw.Raw"},
    "climatology": {"_target_": "models.statistical.climatology.Climatology", "distribution": "auto"},
}
"""Models that need no training run."""


def build_reference(
    name: str, task: Task, grid: Grid | Domain, years_of: Callable[[Task], ForecastDataset]
) -> Corrector:
    """Return the corrector `raw` or `climatology`, which need no training run.

    `years_of(task)` opens the training years on this rank's tile of `grid`; climatology is fitted to them.
    """
    spec = REFERENCES[name]
    task = needed_task(spec, task)
    dataset = years_of(task)
    corrector = Corrector(task, grid, spec, assemble(dataset.static, Domain.of(grid)), meanings=dataset.meanings)
    if name != "raw":
        corrector.fit(dataset.with_all_groups())
    return corrector.eval()


def narrow(sample: Sample, task: Task, to: Task) -> Sample:
    """Return a batch of `task` as a batch of `to`, whose channels, static fields and targets `task` must contain."""
    inputs = [task.channels.index(channel) for channel in to.channels]
    return sample._replace(
        ensemble=select_channels(sample.ensemble, inputs, 2),
        mask=select_channels(sample.mask, inputs, 1),
        static=select_channels(sample.static, [task.static_names.index(name) for name in to.static_names], 1),
        target=select_channels(sample.target, [task.targets.index(variable) for variable in to.targets], 1),
    )


def needed_task(spec: dict[str, Any], task: Task) -> Task:
    """Return the part of a task that the model of `spec` reads: all of it, or only targets, perhaps with groups."""
    claims = protocol.claims(model_class(spec.get("_target_")))
    if not claims.reads_memberships:
        task = replace(task, formulas=tuple(one for one in task.formulas if one not in task.memberships))
    if not claims.targets_only:
        return task
    means = {task.channels[k] for channels in task.group_means for k in channels}
    means |= {task.channels[k] for own in task.system_channels for channels in own for k in channels}
    read = tuple(one for one in task.formulas if claims.reads_groups and Channel(one) in means)
    return replace(task.only_targets(), formulas=read)


def reads_moments(spec: Mapping[str, Any], task: Task) -> bool:
    """Return whether the model of `spec` uses only mean and spread of the ensemble, not of powers of its members."""
    powers = per_target(with_laws(spec, task).get("power", 1.0), len(task.targets))
    return protocol.claims(model_class(spec.get("_target_"))).moments_only and set(powers) == {1}


def build_model(spec: dict[str, Any], task: Task, grid: Grid | Domain) -> nn.Module:
    """Return the model that `spec` describes, complete with `with_laws`. Its option `power` belongs to the normaliser.

    Raises `InputError` for a model that does not claim `tiles` on a domain of several tiles, for one that does not
    claim `cellwise` on points, and for a class that cannot be built as `Model(task, grid, **options)`.
    """
    kind, domain = model_class(spec.get("_target_")), Domain.of(grid)
    options = {name: value for name, value in with_laws(spec, task).items() if name not in ("_target_", "power")}
    try:
        inspect.signature(kind).bind_partial(task, grid)
    except TypeError:
        raise InputError(
            f"{spec['_target_']} cannot be built as Model(task, grid, **options); see models/protocol.py"
        ) from None
    if not protocol.may_claim(kind, "cellwise"):
        _refuse_points(kind, domain.grid)
    if not protocol.may_claim(kind, "tiles"):
        _refuse_tiles(kind, *domain.tiles)
    own_grid = grid if protocol.may_claim(kind, "tiles") else domain.grid
    model = construct(kind.__name__, partial(kind, task, own_grid), options)
    made = protocol.claims(model)
    if not made.cellwise:
        _refuse_points(kind, domain.grid)
    if not made.tiles:
        _refuse_tiles(kind, *domain.tiles)
    return model


def check_tiles(spec: dict[str, Any], bands: int, sectors: int) -> None:
    """Raise `InputError` before processes are started if the model of `spec` can never work on so many tiles."""
    kind = model_class(spec.get("_target_"))
    if not protocol.may_claim(kind, "tiles"):
        _refuse_tiles(kind, bands, sectors)


def _refuse_points(kind: type[nn.Module], grid: Grid) -> None:
    if isinstance(grid, Points):
        raise InputError(
            f"model {kind.__name__} needs neighbouring cells (it does not claim `cellwise`), and the data are {grid}; "
            "choose a model of single cells: model=emos, boosted_emos, mlp, bqn, climatology or raw"
        )


def _refuse_tiles(kind: type[nn.Module], bands: int, sectors: int) -> None:
    if bands * sectors > 1:
        raise InputError(
            f"model {kind.__name__} works on whole fields only (it does not claim `tiles`), and the mesh has {bands} x "
            f"{sectors} tiles; use a mesh of one tile, or in training share batches instead of fields: "
            f"trainer.mesh=[{bands * sectors},1]"
        )
