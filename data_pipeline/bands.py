"""Bands: some rows of the samples of a data set, for fits that go through all samples a few rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from data_pipeline.protocols import ALL
from data_pipeline.sample import Sample


class Band(Dataset[Sample]):
    """Some rows of the samples of any data set; each sample is read as a whole."""

    def __init__(self, dataset: Dataset[Sample], rows: slice) -> None:
        self._dataset, self._rows = dataset, rows

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Sample:
        return rows_of(self._dataset[index], self._rows)


def band(dataset: Dataset[Sample], rows: slice) -> Dataset[Sample]:
    """Return some `rows` of the samples of a data set; one with a method `band` reads no others."""
    if rows == ALL:
        return dataset
    found: Dataset[Sample] = dataset.band(rows) if hasattr(dataset, "band") else Band(dataset, rows)
    return found


def rows_of(sample: Sample, rows: slice) -> Sample:
    """Return some rows of a sample, or of a batch."""
    if rows == ALL:
        return sample
    fields = {name: getattr(sample, name)[..., rows, :] for name in ("ensemble", "mask", "static", "target")}
    return sample._replace(**fields)


def times(dataset: Dataset[Sample]) -> tuple[Tensor, Tensor]:
    """Return start (N,) and lead time (N,) of all samples, by the data set's method `times` or by reading them."""
    if hasattr(dataset, "times"):
        found: tuple[Tensor, Tensor] = dataset.times()
        return found
    pairs = [(s.init_time, s.lead_time) for s in (dataset[k] for k in range(len(dataset)))]  # type: ignore[arg-type]
    starts, leads = zip(*pairs, strict=True)
    return torch.stack(starts), torch.stack(leads)
