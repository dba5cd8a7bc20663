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
        _reduce(packed, self.bits, self.numbers, self.changes, self.direct, _work(), out[0], out[1])


def _work() -> np.ndarray:
    """Return rows for sums whose addresses are multiples of 64 bytes: vectors across cache lines take twice as long."""
    memory = np.empty(4 * BLOCK_CELLS + 16, SINGLE)
    start = -memory.ctypes.data % 64 // SINGLE.itemsize
    return memory[start : start + 4 * BLOCK_CELLS].reshape(4, BLOCK_CELLS)


@compiled_as_written
def _reduce(
    packed: np.ndarray,
    bits: np.ndarray,
    numbers: np.ndarray,
    changes: np.ndarray,
    direct: bool,
    work: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
) -> None:
    members, cells, block = len(packed), len(lower), work.shape[1]
    for first in range(0, cells, block):
        last = min(first + block, cells)
        start, total = work[0][: last - first], work[1][: last - first]
        squares, row = work[2][: last - first], work[3][: last - first]
        for m in range(members):
            scale, reference, divisor, factor, offset = numbers[m]
            octets = packed[m][bits[m] // 8 * first : bits[m] // 8 * last]
            if direct and m:
                # Values of this packing need not be kept: twice as fast.
                _add_shorts(octets.view(np.uint16), np.float32(scale), np.float32(reference), start, total, squares)
            elif direct:
                _unpack_shorts(octets.view(np.uint16), np.float32(scale), np.float32(reference), start)
                total[:] = np.float32(0)
                squares[:] = np.float32(0)
            else:
                _unpack(octets, bits[m], scale, reference, divisor, row)
                if changes[m]:
                    for c in range(len(row)):
                        row[c] = np.float64(row[c]) * factor + offset
                if m == 0:
                    start[:] = row
                    total[:] = np.float32(0)
                    squares[:] = np.float32(0)
                for c in range(len(row)):
                    departure = row[c] - start[c]
                    total[c] += departure
                    squares[c] += departure * departure
        _finish(members, start, total, squares, lower[first:last], upper[first:last])


@compiled_as_written
def _unpack_shorts(shorts: np.ndarray, scale: np.float32, reference: np.float32, out: np.ndarray) -> None:
    for c in range(len(out)):
        whole = np.uint16(np.uint16(shorts[c] >> np.uint16(8)) | np.uint16(shorts[c] << np.uint16(8)))
        out[c] = np.float32(np.int32(whole)) * scale + reference


@compiled_as_written
def _add_shorts(
    shorts: np.ndarray,
    scale: np.float32,
    reference: np.float32,
    start: np.ndarray,
    total: np.ndarray,
    squares: np.ndarray,
) -> None:
    for c in range(len(total)):
        whole = np.uint16(np.uint16(shorts[c] >> np.uint16(8)) | np.uint16(shorts[c] << np.uint16(8)))
        departure = np.float32(np.int32(whole)) * scale + reference - start[c]
        total[c] += departure
        squares[c] += departure * departure


@compiled_as_written
def _unpack(octets: np.ndarray, bits: int, scale: float, reference: float, divisor: float, out: np.ndarray) -> None:
    """Unpack with one rounding from double precision, which is that of single precision where `unpack` uses it."""
    if bits == 8:
        for c in range(len(out)):
            out[c] = (np.float64(octets[c]) * scale + reference) * divisor
    elif bits == 16:
        for c in range(len(out)):
            value = (np.int32(octets[2 * c]) << 8) | np.int32(octets[2 * c + 1])
            out[c] = (np.float64(value) * scale + reference) * divisor
    elif bits == 24:
        for c in range(len(out)):
            value = (np.int32(octets[3 * c]) << 16) | (np.int32(octets[3 * c + 1]) << 8)
            out[c] = (np.float64(value | np.int32(octets[3 * c + 2])) * scale + reference) * divisor
    elif bits == 32:
        for c in range(len(out)):
            high = np.int64((np.int32(octets[4 * c]) << 8) | np.int32(octets[4 * c + 1]))
            low = np.int64((np.int32(octets[4 * c + 2]) << 8) | np.int32(octets[4 * c + 3]))
            out[c] = (np.float64(high * 65536 + low) * scale + reference) * divisor
    else:
        out[:] = np.float32(reference)


@compiled_as_written
def _finish(
    members: int, start: np.ndarray, total: np.ndarray, squares: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> None:
    """Write the pseudo-members; the formula is that of `pseudo_members`."""
    one_of, half_of = 1 / members, 1 / (2 * max(members - 1, 1))
    for c in range(len(total)):
        away = np.float64(total[c])
        mean = np.float64(start[c]) + away * one_of
        variance = np.float32((np.float64(squares[c]) - away * away * one_of) * half_of)
        half = np.float64(np.sqrt(np.float32(0) if variance < 0 else variance))
        lower[c] = mean - half
        upper[c] = mean + half
