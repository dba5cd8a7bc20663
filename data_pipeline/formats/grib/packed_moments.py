"""Compute the moments of members from packed values in one pass; decoded values never leave the processor's cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.common.compiled import compiled_as_written, pread
from data_pipeline.formats.catalog import SINGLE
from data_pipeline.formats.grib.decode import thread_buffer
from data_pipeline.formats.grib.packing import scale_factors
from data_pipeline.variables.units import Conversion

BLOCK_CELLS = 1024
"""Cells that are reduced at once: their three rows of sums take 12 KB."""
PACKED_BYTES_AT_ONCE = 1 << 20
"""Bytes of packed values of all members that are read before they are reduced; 256 KB takes longer (system calls)."""


@dataclass(frozen=True, eq=False)
class PackedMoments:
    """Reduces packed values of K variables and M members to pseudo-members, bit for bit as `pseudo_members` does.

    `bits` (K, M) are 8, 16, 24, 32 or 0. `numbers` (K, M, 5) are 2^E, R and 10^-D of the packing, and factor and offset
    of a conversion of units; `changes` (K, M) says where there is one. `direct` (K) is true where no units change and
    single precision suffices, as in `packing.unpack`.
    """

    bits: np.ndarray
    numbers: np.ndarray
    changes: np.ndarray
    direct: np.ndarray

    @classmethod
    def of(cls, locations: np.ndarray, conversions: Sequence[Conversion]) -> PackedMoments:
        """Collect packing and conversion of messages at `locations` (K, M)."""
        bits, decimals, places = (locations[name].astype(int) for name in ("bits", "decimal", "conversion"))
        numbers = np.empty((*bits.shape, 5))
        numbers[..., 0], numbers[..., 1] = np.ldexp(1.0, locations["binary"]), locations["reference"]
        numbers[..., 2] = 1
        for decimal in set(decimals.ravel().tolist()) - {0}:
            numbers[decimals == decimal, 2] = scale_factors(0, decimal, SINGLE)[1]
        numbers[..., 3:] = np.array(conversions)[places]
        changes = np.array([conversion.changes for conversion in conversions])[places]
        direct = ~changes.any(1) & ((bits == 16) & (decimals == 0)).all(1)
        return cls(bits, numbers, changes, direct)

    def only(self, part: slice) -> PackedMoments:
        """Return some of the variables."""
        return PackedMoments(self.bits[part], self.numbers[part], self.changes[part], self.direct[part])

    def reduce(
        self,
        descriptors: np.ndarray,
        offsets: np.ndarray,
        count: int,
        lower: np.ndarray,
        upper: np.ndarray,
        starts: np.ndarray,
    ) -> tuple[int, int] | None:
        """Fill `count` values of each variable in the flat float32 arrays, beginning at its position in `starts` (K).

        The packed values of member m of variable k begin at byte `offsets[k, m]` of the open file `descriptors[k, m]`.
        Returns the variable and member whose file ended early, or None. One call handles all variables without the
        interpreter's lock, because threads wait for each other at every call. Memory: `PACKED_BYTES_AT_ONCE`, or one
        block of all members if that is more.
        """
        members, width = self.bits.shape[1], int(self.bits.max()) // 8
        blocks = max(1, PACKED_BYTES_AT_ONCE // max(1, width * members * BLOCK_CELLS))
        # The stride is a multiple of eight bytes, so that the values of every member are aligned.
        stride = width * min(blocks * BLOCK_CELLS, -(-count // 8) * 8)
        packed = thread_buffer(stride * members)[: stride * members].reshape(members, stride)
        packing, places = (self.bits, self.numbers, self.changes, self.direct), (descriptors, offsets, starts)
        failed = _reduce_all(*places, count, blocks * BLOCK_CELLS, packed, *packing, _work(), lower, upper)
        return divmod(failed, members) if failed >= 0 else None


def _work() -> np.ndarray:
    """Return rows for sums, aligned to 64 bytes: vectors across cache lines take twice as long."""
    memory = np.empty(4 * BLOCK_CELLS + 16, SINGLE)
    start = -memory.ctypes.data % 64 // SINGLE.itemsize
    return memory[start : start + 4 * BLOCK_CELLS].reshape(4, BLOCK_CELLS)


@compiled_as_written
def _reduce_all(
    descriptors: np.ndarray,
    offsets: np.ndarray,
    starts: np.ndarray,
    count: int,
    cells: int,
    packed: np.ndarray,
    bits: np.ndarray,
    numbers: np.ndarray,
    changes: np.ndarray,
    direct: np.ndarray,
    work: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
) -> int:
    """Reduce all variables; return k M + m if the file of member m of variable k ended early, else -1."""
    for k in range(len(starts)):
        own, start = (bits[k], numbers[k], changes[k], direct[k]), starts[k]
        into = lower[start : start + count], upper[start : start + count]
        failed = _reduce(descriptors[k], offsets[k], cells, packed, *own, work, *into)
        if failed >= 0:
            return k * len(packed) + failed
    return -1


@compiled_as_written
def _reduce(
    descriptors: np.ndarray,
    offsets: np.ndarray,
    cells: int,
    packed: np.ndarray,
    bits: np.ndarray,
    numbers: np.ndarray,
    changes: np.ndarray,
    direct: bool,
    work: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
) -> int:
    """Read and reduce `cells` cells of all members at a time, while their packed values are in the cache."""
    for first in range(0, len(lower), cells):
        last = min(first + cells, len(lower))
        for m in range(len(packed)):
            size = bits[m] // 8 * (last - first)
            into = packed[m][:size]
            if size and pread(descriptors[m], into.ctypes, size, offsets[m] + bits[m] // 8 * first) != size:
                return m
        for begin in range(first, last, work.shape[1]):
            end = min(begin + work.shape[1], last)
            # One-dimensional slices tell the compiler that values are adjacent in memory.
            start, total, squares = work[0][: end - begin], work[1][: end - begin], work[2][: end - begin]
            total[:] = np.float32(0)
            squares[:] = np.float32(0)
            if direct:
                _sum_shorts(packed, begin - first, numbers, start, total, squares)
            else:
                _sum(packed, begin - first, bits, numbers, changes, work[3][: end - begin], start, total, squares)
            _finish(len(packed), start, total, squares, lower[begin:end], upper[begin:end])
    return -1


@compiled_as_written
def _sum_shorts(
    packed: np.ndarray, begin: int, numbers: np.ndarray, start: np.ndarray, total: np.ndarray, squares: np.ndarray
) -> None:
    """Set `start` to the first member and sum the other members' departures from it, and their squares.

    Cells are counted from `begin`. The packing must be `direct`.
    """
    m = 1
    _unpack_shorts(*_member(packed, 0, begin, numbers, len(start)), start)
    # Add three members at once: one at a time, the sums would be loaded and stored for each member.
    while m + 3 <= len(packed):
        _add_three(
            _member(packed, m, begin, numbers, len(start)),
            _member(packed, m + 1, begin, numbers, len(start)),
            _member(packed, m + 2, begin, numbers, len(start)),
            start, total, squares,
        )  # fmt: skip
        m += 3
    while m < len(packed):
        _add_shorts(*_member(packed, m, begin, numbers, len(start)), start, total, squares)
        m += 1


@compiled_as_written
def _member(
    packed: np.ndarray, m: int, begin: int, numbers: np.ndarray, count: int
) -> tuple[np.ndarray, np.float32, np.float32]:
    """Return `count` packed values of member `m` from cell `begin`, the scale 2^E and the reference R."""
    shorts = packed[m][2 * begin : 2 * (begin + count)].view(np.uint16)
    return shorts, np.float32(numbers[m, 0]), np.float32(numbers[m, 1])


@compiled_as_written
def _sum(
    packed: np.ndarray,
    begin: int,
    bits: np.ndarray,
    numbers: np.ndarray,
    changes: np.ndarray,
    row: np.ndarray,
    start: np.ndarray,
    total: np.ndarray,
    squares: np.ndarray,
) -> None:
    """Do the same as `_sum_shorts` for any packing and any change of units."""
    for m in range(len(packed)):
        scale, reference, divisor, factor, offset = numbers[m]
        octets = packed[m][bits[m] // 8 * begin : bits[m] // 8 * (begin + len(row))]
        _unpack(octets, bits[m], scale, reference, divisor, row)
        if changes[m]:
            for c in range(len(row)):
                row[c] = np.float64(row[c]) * factor + offset
        if m == 0:
            start[:] = row
        for c in range(len(row)):
            departure = row[c] - start[c]
            total[c] += departure
            squares[c] += departure * departure


@compiled_as_written
def _value(packed: np.uint16, scale: np.float32, reference: np.float32) -> np.float32:
    whole = np.uint16(np.uint16(packed >> np.uint16(8)) | np.uint16(packed << np.uint16(8)))
    return np.float32(np.int32(whole)) * scale + reference


@compiled_as_written
def _unpack_shorts(shorts: np.ndarray, scale: np.float32, reference: np.float32, out: np.ndarray) -> None:
    for c in range(len(out)):
        out[c] = _value(shorts[c], scale, reference)


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
        departure = _value(shorts[c], scale, reference) - start[c]
        total[c] += departure
        squares[c] += departure * departure


@compiled_as_written
def _add_three(
    one: tuple[np.ndarray, np.float32, np.float32],
    two: tuple[np.ndarray, np.float32, np.float32],
    three: tuple[np.ndarray, np.float32, np.float32],
    start: np.ndarray,
    total: np.ndarray,
    squares: np.ndarray,
) -> None:
    first, first_scale, first_reference = one
    second, second_scale, second_reference = two
    third, third_scale, third_reference = three
    for c in range(len(total)):
        a = _value(first[c], first_scale, first_reference) - start[c]
        b = _value(second[c], second_scale, second_reference) - start[c]
        d = _value(third[c], third_scale, third_reference) - start[c]
        total[c] = total[c] + a + b + d
        squares[c] = squares[c] + a * a + b * b + d * d


@compiled_as_written
def _unpack(octets: np.ndarray, bits: int, scale: float, reference: float, divisor: float, out: np.ndarray) -> None:
    """Unpack in double precision and round once; where `packing.unpack` uses single precision, the result is equal."""
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
    """Write the pseudo-members, by the formula of `pseudo_members`."""
    one_of, half_of = 1 / members, 1 / (2 * max(members - 1, 1))
    for c in range(len(total)):
        away = np.float64(total[c])
        mean = np.float64(start[c]) + away * one_of
        variance = np.float32((np.float64(squares[c]) - away * away * one_of) * half_of)
        half = np.float64(np.sqrt(np.float32(0) if variance < 0 else variance))
        lower[c] = mean - half
        upper[c] = mean + half
