"""Weighted sums of fields over regions, each in one pass over the cells, however many regions overlap.

    regions = RegionSums(weights)            # weights (R, H, W)
    regions.sum(values, truth)               # (..., R) of values (..., H, W)

Regions divide the grid into *atoms*: sets of cells that are in the same regions. A pass over the cells sums each atom;
the sum of a region is the sum of its atoms. Neighbouring cells of an atom are summed with vector instructions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from data_pipeline.common.compiled import compiled


class RegionSums:
    """Sums over regions with `weights` (R, H, W), in double precision. Cells where the truth is NaN have no weight."""

    def __init__(self, weights: np.ndarray) -> None:
        self.weights = np.asarray(weights, np.float64)
        flat = self.weights.reshape(len(weights), -1)
        inside = flat != 0
        bases, self._base = _base_fields(flat, inside)
        self._bases = np.ascontiguousarray(bases)
        self._atoms, first = _atoms(inside)
        self._atoms_of = [np.flatnonzero(region) for region in inside[:, first]]
        self._atom_count = len(first)
        changes = np.flatnonzero(np.diff(self._atoms)) + 1
        self._ends = np.concatenate([changes, [self._atoms.size]])

    @classmethod
    def of(cls, regions: RegionSums | Mapping[str, np.ndarray]) -> RegionSums:
        """Return the sums over regions that are given by name with their weights (H, W)."""
        return regions if isinstance(regions, RegionSums) else cls(np.stack(list(regions.values())))

    @property
    def count(self) -> int:
        """Number of regions."""
        return len(self._atoms_of)

    def sum(self, values: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Return the sums (..., R) of values (..., H, W); `truth` has the shape of `values`."""
        size = self._atoms.size
        rows = list(zip(_rows(values, size), _rows(truth, size), strict=True))
        sums = np.empty((len(rows), len(self._bases), self._atom_count))
        for row, (field, expected) in enumerate(rows):
            _sum_atoms(field, expected, self._bases, self._atoms, self._ends, sums[row])
        return self._of_regions(sums).reshape(*values.shape[:-2], self.count)

    def sum_bins(self, index: np.ndarray, values: np.ndarray, truth: np.ndarray, bins: int) -> np.ndarray:
        """Return the sums (..., R, bins) of values (..., H, W) in bins; `index` is the bin of each cell."""
        lead, size = values.shape[:-2], self._atoms.size
        rows = zip(_rows(index, size), _rows(values, size), _rows(truth, size), strict=True)
        sums = np.zeros((int(np.prod(lead)), len(self._bases), self._atom_count, bins))
        for row, (places, field, expected) in enumerate(rows):
            _sum_bins(places, field, expected, self._bases, self._atoms, sums[row])
        return np.moveaxis(self._of_regions(np.moveaxis(sums, -1, 1)), 1, -1).reshape(*lead, self.count, bins)

    def _of_regions(self, sums: np.ndarray) -> np.ndarray:
        """Return the sums (..., R) of the regions from the sums (..., bases, A) of the atoms."""
        # No matrix product: NaN outside a region must not reach it, and 0 times NaN is NaN.
        pairs = zip(self._base, self._atoms_of, strict=True)
        return np.stack([sums[..., base, atoms].sum(-1) for base, atoms in pairs], -1)


def _base_fields(weights: np.ndarray, inside: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the different fields of weights, and for each region the index of its field among them.

    Most regions weigh cells by area, so that two fields (area and 1) serve all of them.
    """
    bases: list[np.ndarray] = []
    chosen = np.zeros(len(weights), np.int64)
    for region in np.argsort(-inside.sum(1), kind="stable"):
        own = inside[region]
        same = [k for k, base in enumerate(bases) if np.array_equal(base[own], weights[region, own])]
        if not same:
            bases.append(weights[region])
        chosen[region] = same[0] if same else len(bases) - 1
    return bases, chosen


def _atoms(inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the atom of each cell, and the first cell of each atom, for regions (R, cells)."""
    atoms, first = np.zeros(inside.shape[1], np.int64), np.zeros(1, np.int64)
    for begin in range(0, len(inside), 32):
        for region in inside[begin : begin + 32]:
            atoms = 2 * atoms + region
        _, first, atoms = np.unique(atoms, return_index=True, return_inverse=True)
    return atoms.astype(np.int32), first


def _rows(fields: np.ndarray, size: int) -> np.ndarray:
    return np.ascontiguousarray(fields).reshape(-1, size)


@compiled
def _sum_atoms(
    values: np.ndarray, truth: np.ndarray, bases: np.ndarray, atoms: np.ndarray, ends: np.ndarray, sums: np.ndarray
) -> None:
    sums[:] = 0
    for base in range(len(bases)):
        start = 0
        for end in ends:
            # Slices, because loops whose indices are sums do not use vector instructions.
            field, expected, weights = values[start:end], truth[start:end], bases[base, start:end]
            total = 0.0
            for k in range(field.size):
                total += weights[k] * field[k] if expected[k] == expected[k] else 0.0
            sums[base, atoms[start]] += total
            start = end


@compiled
def _sum_bins(
    index: np.ndarray, values: np.ndarray, truth: np.ndarray, bases: np.ndarray, atoms: np.ndarray, sums: np.ndarray
) -> None:
    last = sums.shape[2] - 1
    for base in range(len(bases)):
        for k in range(values.size):
            if truth[k] == truth[k]:
                sums[base, atoms[k], min(max(index[k], 0), last)] += bases[base, k] * values[k]


@compiled
def add_known(values: np.ndarray, truth: np.ndarray, total: np.ndarray) -> None:
    """Add values (cells,) to `total` in the cells whose truth is known."""
    for k in range(values.size):
        total[k] += values[k] if truth[k] == truth[k] else 0.0


def count_missing(values: np.ndarray, others: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the number (...) of cells with known truth where one of two fields (..., H, W) is not finite."""
    rows = [field.reshape(-1, truth.shape[-2] * truth.shape[-1]) for field in (values, others, truth)]
    counts = [_count_missing(*fields) for fields in zip(*rows, strict=True)]
    return np.array(counts, np.int64).reshape(truth.shape[:-2])


@compiled
def _count_missing(values: np.ndarray, others: np.ndarray, truth: np.ndarray) -> int:
    missing = 0
    for k in range(truth.size):
        missing += truth[k] == truth[k] and not (np.isfinite(values[k]) and np.isfinite(others[k]))
    return missing
