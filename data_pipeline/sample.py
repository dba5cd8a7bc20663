"""Sample: one forecast as tensors, the only input of models; and the selection of rows of samples.

Dimension letters, here and everywhere: B batch, M members, C input channels, S static channels, T targets,
H latitude rows (north first), W longitude columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from data_pipeline.protocols import ALL


class Sample(NamedTuple):
    """One forecast start and lead time in physical units; a batch has a leading B on every field.

    It is a NamedTuple, because PyTorch collates it and Lightning moves it between devices without further code.
    """

    ensemble: Tensor
    """(M, C, H, W) members of every input, in the order of `Task.channels`. Values are arbitrary where `mask` is False.

    A channel of the analysis is the same in all members.
    """
    mask: Tensor
    """(C, H, W) True where all members have a value (sea-surface temperature has none on land)."""
    static: Tensor
    """(S, H, W) fields that do not change with time, in the order of `Task.static_names`."""
    target: Tensor
    """(T, H, W) verifying analysis, in the order of `Task.targets`; NaN where it is missing."""
    init_time: Tensor
    """() start of the forecast, int64 seconds since 1970-01-01 UTC."""
    lead_time: Tensor
    """() int64 hours from the start to the valid time."""


def verifiable(sample: Sample, target_channels: Sequence[int]) -> Tensor:
    """Return the analysis (..., T, H, W) of a sample or batch, NaN where a raw member of the target is missing.

    Training, validation and evaluation use exactly the cells in which the result is finite.
    """
    return sample.target.masked_fill(~select_channels(sample.mask, target_channels, -3), torch.nan)


def select_channels(x: Tensor, channels: Sequence[int], dim: int) -> Tensor:
    """Return the entries `channels` of a dimension; consecutive channels are returned as a view of `x`.

    The result equals indexing with a list. But PyTorch copies a list to the device of `x` at each use, and the host
    then waits until the GPU reaches the copy.

    >>> select_channels(torch.arange(5), [3, 0, 1], 0)
    tensor([3, 0, 1])
    """
    starts = [k for k, channel in enumerate(channels) if k == 0 or channel != channels[k - 1] + 1]
    ends = [*starts[1:], len(channels)]
    runs = [x.narrow(dim, channels[start], end - start) for start, end in zip(starts, ends, strict=True)]
    return runs[0] if len(runs) == 1 else torch.cat(runs, dim) if runs else x.narrow(dim, 0, 0)


class LatitudeBand(Dataset[Sample]):
    """A band of rows of the samples of any data set; whole samples are read."""

    def __init__(self, dataset: Dataset[Sample], rows: slice) -> None:
        self._dataset, self._rows = dataset, rows

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Sample:
        return select_rows(self._dataset[index], self._rows)


def latitude_band(dataset: Dataset[Sample], rows: slice) -> Dataset[Sample]:
    """Return the samples of a data set cut to a band of `rows`; a data set with a method `band` reads only these rows.

    Fits that need all samples at once use bands to bound their memory.
    """
    if rows == ALL:
        return dataset
    found: Dataset[Sample] = dataset.band(rows) if hasattr(dataset, "band") else LatitudeBand(dataset, rows)
    return found


def select_rows(sample: Sample, rows: slice) -> Sample:
    """Return some rows of a sample or of a batch."""
    if rows == ALL:
        return sample
    fields = {name: getattr(sample, name)[..., rows, :] for name in ("ensemble", "mask", "static", "target")}
    return sample._replace(**fields)


def forecast_times(dataset: Dataset[Sample]) -> tuple[Tensor, Tensor]:
    """Return start (N,) and lead time (N,) of all samples; a data set without a method `times` is read once."""
    if hasattr(dataset, "times"):
        found: tuple[Tensor, Tensor] = dataset.times()
        return found
    pairs = [(s.init_time, s.lead_time) for s in (dataset[k] for k in range(len(dataset)))]  # type: ignore[arg-type]
    starts, leads = zip(*pairs, strict=True)
    return torch.stack(starts), torch.stack(leads)
