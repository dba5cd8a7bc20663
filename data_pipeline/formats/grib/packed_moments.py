"""Moments of the members of one variable, from packed values in one pass: decoded blocks never leave the cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipeline.common.compiled import compiled_as_written
from data_pipeline.formats.catalog import SINGLE
from data_pipeline.formats.grib.packing import Packing, scale_factors
from data_pipeline.units import Conversion

BLOCK_CELLS = 1024
"""Cells that are reduced at once: their three rows of sums take 12 KB."""


@dataclass(frozen=True, eq=False)
class PackedMoments:
    """Reduces packed values of M members to pseudo-members, bit for bit as `pseudo_members` does.

    `bits` (M,) are 8, 16, 24, 32 or 0, `numbers` (M, 5) the 2^E, R and 10^-D of the packing, and factor and offset of a
    change of units. `direct`: single precision suffices, as in `packing.unpack`, and no units change.
    """

    bits: np.ndarray
    numbers: np.ndarray
    changes: np.ndarray
    direct: bool

    @classmethod
    def of(cls, packings: list[Packing], conversions: list[Conversion]) -> PackedMoments:
        """Collect packing and conversion of each member."""
        factors = [scale_factors(packing.binary, packing.decimal, SINGLE) for packing in packings]
        numbers = [
            (scale, packing.reference, divisor, conversion.factor, conversion.offset)
            for packing, (scale, divisor), conversion in zip(packings, factors, conversions, strict=True)
        ]
        changes = np.array([conversion.changes for conversion in conversions])
        direct = not changes.any() and all(packing.bits == 16 and not packing.decimal for packing in packings)
        return cls(np.array([packing.bits for packing in packings]), np.array(numbers), changes, direct)

    def reduce(self, packed: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` (2, N), float32, from the rows of `packed` (M, bytes), each aligned to eight bytes.

        Releases the interpreter's lock.
        """
        _reduce(packed, self.bits, self.numbers, self.changes, self.direct, BLOCK_CELLS, out[0], out[1])


@compiled_as_written
def _reduce(
    packed: np.ndarray,
    bits: np.ndarray,
    numbers: np.ndarray,
    changes: np.ndarray,
    direct: bool,
    block: int,
    lower: np.ndarray,
    upper: np.ndarray,
) -> None:
    members, cells = len(packed), len(lower)
    one_of, half_of = 1 / members, 1 / (2 * max(members - 1, 1))
    start, row = np.empty(block, np.float32), np.empty(block, np.float32)
    total, squares = np.empty(block, np.float32), np.empty(block, np.float32)
    for first in range(0, cells, block):
        count = min(block, cells - first)
        total[:] = np.float32(0)
        squares[:] = np.float32(0)
        for m in range(members):
            scale, reference, divisor, factor, offset = numbers[m]
            size = bits[m] // 8
            octets = packed[m, size * first : size * (first + count)]
            if direct and m:
                # By itself, because values of this packing need not be kept: three times as fast as `row`.
                shorts, multiplier, summand = octets.view(np.uint16), np.float32(scale), np.float32(reference)
                for c in range(count):
                    whole = np.uint16(np.uint16(shorts[c] >> np.uint16(8)) | np.uint16(shorts[c] << np.uint16(8)))
                    departure = np.float32(np.int32(whole)) * multiplier + summand - start[c]
                    total[c] += departure
                    squares[c] += departure * departure
                continue
            # One rounding from double precision, which is that of single precision where `unpack` computes in it.
            if size == 1:
                for c in range(count):
                    row[c] = (np.float64(octets[c]) * scale + reference) * divisor
            elif size == 2:
                for c in range(count):
                    value = (np.int32(octets[2 * c]) << 8) | np.int32(octets[2 * c + 1])
                    row[c] = (np.float64(value) * scale + reference) * divisor
            elif size == 3:
                for c in range(count):
                    value = (np.int32(octets[3 * c]) << 16) | (np.int32(octets[3 * c + 1]) << 8)
                    row[c] = (np.float64(value | np.int32(octets[3 * c + 2])) * scale + reference) * divisor
            elif size == 4:
                for c in range(count):
                    upper_half = np.int64((np.int32(octets[4 * c]) << 8) | np.int32(octets[4 * c + 1]))
                    lower_half = np.int64((np.int32(octets[4 * c + 2]) << 8) | np.int32(octets[4 * c + 3]))
                    row[c] = (np.float64(upper_half * 65536 + lower_half) * scale + reference) * divisor
            else:
                row[:] = np.float32(reference)
            if changes[m]:
                for c in range(count):
                    row[c] = np.float64(row[c]) * factor + offset
            if m == 0:
                start[:] = row
            for c in range(count):
                departure = row[c] - start[c]
                total[c] += departure
                squares[c] += departure * departure
        for c in range(count):
            away = np.float64(total[c])
            mean = np.float64(start[c]) + away * one_of
            variance = np.float32((np.float64(squares[c]) - away * away * one_of) * half_of)
            half = np.float64(np.sqrt(np.float32(0) if variance < 0 else variance))
            lower[first + c] = mean - half
            upper[first + c] = mean + half
