"""Normalisation: statistics that `train` would fit in its first reading of the data, computed earlier by a cluster.

The results equal those of `train`, because both process forecasts in the blocks of `cell_moments`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from data_pipeline.cell_moments import FORECASTS_OF_A_BLOCK, CellMoments
from data_pipeline.common.checks import check_integer, check_positive
from data_pipeline.common.errors import InputError
from data_pipeline.dates import epoch_seconds
from data_pipeline.protocols import ALL, Fields
from data_pipeline.samples.pseudo_members import complete_cells, pseudo_members
from data_pipeline.samples.selection import present_members
from data_pipeline.sources.forecast_summary import SUMMARY_COLUMNS, join_tiles, summarise_tile
from data_pipeline.statistics.statistic import ROWS_OF_A_CHUNK, Axes, Piece
from data_pipeline.statistics.training_forecasts import TrainingForecasts, latitude_bands

if TYPE_CHECKING:
    import xarray as xr

SAMPLE_KINDS = ("members", "moments")
"""Kinds of samples that models read: all members, or two `pseudo_members` with the members' mean and spread."""

Keys = Sequence[tuple[int, int, int]]
"""Positions (start, lead time, analysis) of forecasts."""


@dataclass(frozen=True, eq=False)
class NormalizationData:
    """The statistics from which a normaliser and an envelope are made, for some channels and one kind of samples."""

    count: np.ndarray
    """(C, H, W) number of forecasts in which all members have a value."""
    mean: np.ndarray
    """(C, H, W) mean of these forecasts."""
    squares: np.ndarray
    """(C, H, W) sum of the members' mean squared departures from the mean."""
    verified: np.ndarray
    """(T, H, W) whether at least one forecast of a target has a truth."""
    summaries: np.ndarray
    """(N, C, 6) `forecast_summary.SUMMARY_COLUMNS` of each forecast."""
    starts: np.ndarray
    """(N,) starts of the forecasts, seconds since 1970."""
    lead_times: np.ndarray
    """(N,) lead times of the forecasts in hours."""
    members: int
    """Number of members of each forecast."""


@dataclass(frozen=True)
class Normalization:
    """`count`, `mean` and `squares` of every channel and cell, for models of members and for models of moments.

    `max_members`, as in `train`, limits each forecast to its first members; None takes all members. A cluster's task
    reads a block of forecasts; latitudes are processed in bands, so that memory stays near `memory_bytes`.
    """

    max_members: int | None = None
    memory_bytes: int = 2_000_000_000

    name: ClassVar[str] = "normalization"
    precision: ClassVar[type] = np.float64

    def __post_init__(self) -> None:
        if self.max_members is not None:
            check_integer("normalization.max_members", self.max_members, 1)
        check_positive("normalization.memory_bytes", self.memory_bytes)

    def axes(self, training: TrainingForecasts) -> Axes:
        """Return the dimensions and coordinates of the computed variables."""
        cells = ("kind", "channel", "latitude", "longitude")
        task = training.task
        return {
            **dict.fromkeys(("count", "mean", "squares"), cells),
            "verified": ("target", "latitude", "longitude"),
            "summary": ("kind", "channel", "forecast", "column"),
            "start": ("forecast",),
            "lead": ("forecast",),
        }, {
            "kind": np.array(SAMPLE_KINDS, dtype=object),
            "channel": np.array([str(channel) for channel in task.channels], dtype=object),
            "target": np.array([str(target) for target in task.targets], dtype=object),
            "forecast": np.arange(len(training.keys)),
            "column": np.array(SUMMARY_COLUMNS, dtype=object),
            "number": np.array(training.inputs.numbers)[list(self._members(training))],
        }

    def count_fields(self, training: TrainingForecasts) -> int:
        """Return the number of fields that are read."""
        members = len(self._members(training))
        return len(training.keys) * (len(training.task.channels) * members + len(training.task.targets))

    def count_pieces(self, training: TrainingForecasts, at_once: int) -> int:
        """Return the number of pieces that `compute` yields."""
        return len(self._bands(training, at_once)) * (len(_groups(training.keys, at_once)) + 1) + 1

    def compute(self, training: TrainingForecasts, at_once: int) -> Iterator[Piece]:
        """Yield the maps of each band of latitudes; before them, a piece without values for each group of blocks."""
        import dask
        from dask.delayed import delayed

        read = delayed(_read_block, pure=True)
        present = present_members(training.task, training.inputs.numbers, training.ledger)
        # With names, Dask does not hash the positions of all messages, and sends the fields to each worker once.
        label = f"{training.source.fingerprint} {training.task.lead_times}"
        fields = delayed(training.inputs, name=f"inputs {label}", traverse=False)
        truth = delayed(training.truth, name=f"truth {label}", traverse=False)
        everyone, targets, grid = [*self._members(training)], training.task.target_channels, training.grid
        starts = epoch_seconds(training.inputs.init_times)

        def members(keys: Keys) -> list[list[int]]:
            return [present.get((int(starts[i]), training.task.lead_times[j]), everyone) for i, j, _ in keys]

        summaries: list[np.ndarray] = []
        for rows in self._bands(training, at_once):
            totals: list[CellMoments] = []
            verified = np.zeros((len(targets), rows.stop - rows.start, grid.shape[1]), bool)
            of_band: list[np.ndarray] = []
            where = f"rows {rows.start + 1} to {rows.stop}"
            for group in _groups(training.keys, at_once):
                blocks = dask.compute(
                    *(read(fields, truth, keys, targets, grid, rows, members(keys)) for keys in group)
                )
                for block in blocks:
                    totals = totals or [CellMoments(one.mean.shape) for one in block.moments]
                    for total, one in zip(totals, block.moments, strict=True):
                        total.join(one)
                    verified |= block.verified
                    of_band.append(block.summaries)
                yield f"{where}, {sum(map(len, group))} forecasts", {}
            every, at = slice(None), (slice(None), slice(None), rows)
            maps = {name: (at, np.stack([getattr(total, name) for total in totals])) for name in ("count", "mean")}
            maps["squares"] = at, np.stack([total.squares for total in totals])
            yield where, {**maps, "verified": ((every, rows), verified)}
            summaries.append(np.concatenate(of_band, axis=1))
        yield (
            "summaries",
            {
                "summary": ((slice(None),), join_tiles(summaries).swapaxes(1, 2)),
                "start": ((slice(None),), [starts[i] for i, _, _ in training.keys]),
                "lead": ((slice(None),), [training.task.lead_times[j] for _, j, _ in training.keys]),
            },
        )

    def _members(self, training: TrainingForecasts) -> range:
        count = len(training.inputs.numbers)
        if self.max_members is not None and self.max_members > count:
            raise InputError(f"normalization.max_members={self.max_members} is more than the {count} members of data")
        return range(self.max_members or count)

    def _bands(self, training: TrainingForecasts, at_once: int) -> list[slice]:
        height, width = training.grid.shape
        # Memory of each task for the sample, its departures, and its moments twice; and for the total.
        per_channel = at_once * (6 * len(self._members(training)) + 2 * 20 + 24) + 2 * 20 + 24
        return latitude_bands(
            height, width * len(training.task.channels) * per_channel, self.memory_bytes, ROWS_OF_A_CHUNK
        )


def normalization_of(file: xr.Dataset, channels: Sequence[str], targets: Sequence[str], kind: str) -> NormalizationData:
    """Return the statistics of some channels and targets from a loaded file, for a `kind` of `SAMPLE_KINDS`."""
    found = file.sel(kind=kind, channel=list(channels), target=list(targets))
    count, mean, squares = (
        found[name].transpose("channel", "latitude", "longitude").values for name in ("count", "mean", "squares")
    )
    return NormalizationData(
        count, mean, squares,
        verified=found.verified.transpose("target", "latitude", "longitude").values > 0,
        summaries=found.summary.transpose("forecast", "channel", "column").values,
        starts=found.start.values.astype(np.int64),
        lead_times=found.lead.values.astype(np.int64),
        members=file.sizes["number"],
    )  # fmt: skip


class _Block(NamedTuple):
    moments: list[CellMoments]
    verified: np.ndarray
    summaries: np.ndarray


def _groups(keys: Keys, at_once: int) -> list[list[Keys]]:
    """Return blocks of forecasts, in groups of `at_once` blocks that are computed at the same time."""
    blocks = [keys[k : k + FORECASTS_OF_A_BLOCK] for k in range(0, len(keys), FORECASTS_OF_A_BLOCK)]
    return [blocks[k : k + at_once] for k in range(0, len(blocks), at_once)]


def _read_block(
    fields: Fields, truth: Fields, keys: Keys, targets: Sequence[int], grid: Any, rows: slice,
    members: Sequence[Sequence[int]],
) -> _Block:  # fmt: skip
    shape = (len(fields.variables), rows.stop - rows.start, grid.shape[1])
    moments = [CellMoments(shape) for _ in SAMPLE_KINDS]
    verified = np.zeros((len(targets), *shape[1:]), bool)
    summaries = np.empty((len(SAMPLE_KINDS), len(keys), shape[0], len(SUMMARY_COLUMNS)))
    target = np.empty((1, len(targets), *shape[1:]), np.float32)
    for n, (init, lead, analysis) in enumerate(keys):
        values = np.empty((len(members[n]), *shape), np.float32)
        fields.read(fields.cells[init, lead, members[n]], values, (rows, ALL))
        truth.read(truth.cells[analysis, 0], target, (rows, ALL))
        for kind, ensemble in enumerate((values, pseudo_members(values))):
            mask = complete_cells(ensemble)
            moments[kind].add(ensemble, mask)
            columns = slice(0, shape[2])
            summaries[kind, n] = summarise_tile(ensemble, mask, grid.weights, rows, columns, grid.shape)
        verified |= np.isfinite(target[0]) & mask[list(targets)]
    return _Block(moments, verified, summaries)
