"""Lattice: round all members of a forecast to common values that simple packing does not change.

Simple packing rounds each field to R + X 2^E, where every field has its own reference R and step 2^E (WMO Manual on
Codes, regulation 92.9.4). If members are packed separately, two members that differ by less than a step may change
their order. On a common lattice they cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import in_threads
from data_pipeline.formats.grib.cache import table_of
from data_pipeline.formats.grib.keys import opened
from data_pipeline.formats.grib.kind import find_conversions
from data_pipeline.formats.grib.names import MessageNames
from data_pipeline.formats.grib.packing import Resolution
from data_pipeline.formats.grib.scan import damaged_message
from data_pipeline.formats.grib.table import Table
from data_pipeline.task import Variable
from data_pipeline.variables.units import Conversion

DEFAULT_BITS = 16
ROUNDING_THREADS = 8
"""Threads that round members at once; numpy releases the interpreter's lock."""


@dataclass(frozen=True)
class Lattice:
    """Multiples of 2^E, with the smallest E that `bits` per value allow for the member with the widest range.

    The lattice is in the units of the file. `conversion` converts them to the units in which fields are read.
    """

    bits: int = DEFAULT_BITS
    conversion: Conversion = field(default_factory=Conversion)

    @classmethod
    def of(
        cls, sources: str | Path | Sequence[Path], variable: Variable, names: Mapping[str, str] | None = None
    ) -> Lattice:
        """Return the lattice for `variable` in the files `sources`, with the most bits of any of its messages.

        `names` are the user's names, as in `MessageNames`. Messages in several units raise `InputError`.

        In files packed to a number of decimal digits, the bits of a message depend on its range of values. A correction
        may widen any range, so all members get the most bits.
        """
        own_names, finest = MessageNames(names or {}), -1
        conversions: dict[str, Conversion] = {}
        paths = [Path(sources)] if isinstance(sources, str | Path) else list(sources)
        for path in paths:
            table = table_of(path)
            own = [found if (found := own_names.variable(kind)) == variable else None for kind in table.kinds]
            kinds = [number for number, found in enumerate(own) if found]
            made = tuple(find_conversions(table.kinds, own, [path] * len(own)))
            conversions |= {table.kinds[kind].units: made[kind] for kind in kinds}
            finest = max(finest, _finest_bits(table, kinds))
        files = " and ".join(map(str, paths))
        if not conversions:
            raise InputError(f"{files} has no {variable}; name a variable that is in the file")
        if len(conversions) > 1:
            raise InputError(
                f"{files} has {variable} in {' and in '.join(conversions)}; packed members in several units cannot "
                "keep their order, so write all in one of them first"
            )
        # Constant fields are packed in 0 bits, whatever their precision.
        return cls(finest if finest > 0 else DEFAULT_BITS, next(iter(conversions.values())))

    def round(self, members: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return `members` (M, H, W) in the file's units, rounded to their common lattice; NaN stays NaN.

        The result is written to `out`, which may be `members`.
        """
        members = np.asarray(members, np.float64)
        out = np.empty_like(members) if out is None else out
        positions, to = range(len(members)), self.conversion

        def convert(member: int) -> tuple[float, float] | None:
            """Write a member in the file's units to `out`; return its lowest and highest value."""
            field = out[member]
            if to.changes:
                np.divide(np.subtract(members[member], to.offset, out=field), to.factor, out=field)
            elif field is not members[member]:
                field[...] = members[member]
            ends = float(field.min()), float(field.max())
            if np.isfinite(ends).all():
                return ends
            finite = field[np.isfinite(field)]
            return (float(finite.min()), float(finite.max())) if finite.size else None

        limits = [ends for ends in in_threads(convert, positions, ROUNDING_THREADS) if ends]
        if not limits:
            return out
        widest = max(highest - lowest for lowest, highest in limits)
        largest = max(abs(value) for ends in limits for value in ends)
        # Use two steps fewer than the bits allow, because rounding moves both ends. The step is no finer than the
        # reference value, which has 21 binary digits in GRIB1's hexadecimal floating point.
        step = max(widest / max(2.0**self.bits - 3, 1), largest * 2.0**-20, float(np.finfo(np.float32).tiny))
        step = 2.0 ** np.ceil(np.log2(step))

        def snap(member: int) -> None:
            field = np.multiply(out[member], 1 / step, out=out[member])  # exact: the step is a power of two
            np.multiply(np.rint(field, out=field), step, out=field)

        list(in_threads(snap, positions, ROUNDING_THREADS))
        return out


def _finest_bits(table: Table, kinds: Sequence[int]) -> int:
    """Return the most bits per value of all messages of these kinds in a file; -1 if there are none."""
    records = table.records[np.isin(table.records["kind"], kinds)]
    finest = int(records["bits"].max(initial=-1))
    with table.path.open("rb", buffering=0) as file:
        for record in records[records["bits"] < 0]:
            message = table.message(file.fileno(), record)
            try:
                with opened(message) as handle:
                    finest = max(finest, Resolution.of(handle).bits)
            except eccodes.CodesInternalError as error:
                problem = f"does not say in how many bits its values are packed ({error})"
                raise damaged_message(table.path, int(record["offset"]), problem) from None
    return finest
