"""Start dates of the experiment in pairs, which are the units of work, and the files of each pair.

output.pl.2018MMDD    as in ENS-10: members of all years for one start date, on pressure levels
output.sfc.2018MMDD   the same at the surface
analysis.*.2018MMDD   as in ERA5: the truth at the valid times of these forecasts
oracle.*.2018MMDD     as output.*: the oracle's members, only for the oracle years and the targets
static                land-sea mask and geopotential of the surface
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from data_pipeline.task import Variable

REFERENCE_YEAR = 2018
LEAD_TIMES = 0, 24, 48
"""Lead times of all forecasts, hours."""
NEW_YEAR = date(REFERENCE_YEAR, 1, 1)
STARTS = tuple(day for day in (NEW_YEAR + timedelta(n) for n in range(365)) if day.weekday() in (0, 3))
"""The 105 start dates of ENS-10: every Monday and Thursday of 2018."""
MAX_DATES = len(STARTS) - 1
"""Most start dates; 31 December is left out, because its forecasts are valid in January of the next year."""

PRESSURE_VARIABLES = tuple(
    Variable(name, level) for name in ("z", "t", "u", "v", "q", "w", "d") for level in (500, 850)
)
SURFACE_VARIABLES = tuple(
    Variable(name) for name in ("sst", "tcw", "tcwv", "cp", "msl", "tcc", "10u", "10v", "2t", "tp", "skt")
)
VARIABLES: dict[str, dict[str, tuple[Variable, ...]]] = {
    "output": {"pl": PRESSURE_VARIABLES, "sfc": SURFACE_VARIABLES},
    "analysis": {"pl": PRESSURE_VARIABLES, "sfc": SURFACE_VARIABLES},
    "oracle": {"pl": (Variable("z", 500), Variable("t", 850)), "sfc": (Variable("2t"), Variable("tp"))},
}
"""Variables of each kind of file and type of level."""
STATIC_FIELDS_FILE = "static"

BITS_PER_VALUE = 16
"""Bits per value, as in ENS-10."""
MESSAGE_HEADER_BYTES = 125
"""Size of a GRIB1 message without its values."""


@dataclass(frozen=True)
class StartPair:
    """Two neighbouring start dates in all years, which are integrated together."""

    starts: tuple[date, date]
    years: tuple[int, ...]
    oracle_years: tuple[int, ...]
    members: int
    difficulty: float
    seed: int
    shuffled: bool = False

    def file_names(self, start: date) -> list[str]:
        """Return the names of all files of one start date."""
        return [file_name(kind, levels, start) for kind in self._copies() for levels in VARIABLES[kind]]

    def count_messages(self) -> int:
        """Return the number of GRIB messages in the files of the pair."""
        fields = {kind: sum(map(len, levels.values())) for kind, levels in VARIABLES.items()}
        per_lead = sum(copies * fields[kind] for kind, copies in self._copies().items())
        return len(self.starts) * len(LEAD_TIMES) * per_lead

    def _copies(self) -> dict[str, int]:
        """Return how many copies of a field each kind of file holds for one start date and lead time."""
        copies = {
            "output": len(self.years) * self.members,
            "analysis": len(self.years),
            "oracle": len(self.oracle_years) * self.members,
        }
        return {kind: count for kind, count in copies.items() if count}


def start_pairs(dates: int) -> list[tuple[date, date]]:
    """Return `dates` start dates (an even number up to `MAX_DATES`) as pairs of neighbours spread over the year.

    >>> [f"{first:%m%d} {second:%m%d}" for first, second in start_pairs(4)]
    ['0108 0111', '0709 0712']
    """
    pairs = dates // 2
    starts_per_pair = MAX_DATES // pairs
    first = min(2, starts_per_pair - 2)
    index = [first + MAX_DATES * k // pairs for k in range(pairs)]
    return [(STARTS[k], STARTS[k + 1]) for k in index]


def days_since_new_year(day: date) -> float:
    """Return the days since 1 January of `REFERENCE_YEAR`, the year of all start dates."""
    return float((day - NEW_YEAR).days)


def file_name(kind: str, levels: str, start: date) -> str:
    """Return the name of one file; `levels` is pl or sfc."""
    return f"{kind}.{levels}.{start:%Y%m%d}"


def message_bytes(points: int) -> int:
    """Return the size of a GRIB message with `points` grid points."""
    return MESSAGE_HEADER_BYTES + points * BITS_PER_VALUE // 8
