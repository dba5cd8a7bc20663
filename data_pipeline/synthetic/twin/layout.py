"""What the experiment consists of, and which files hold it.

output.pl.2018MMDD    as ENS-10: members of all years for one start date, on pressure levels
output.sfc.2018MMDD   the same at the surface
analysis.*.2018MMDD   as ERA5: the truth at the times for which these forecasts are valid
oracle.*.2018MMDD     as output: the oracle's members, for its years and the targets only
static                land-sea mask and geopotential of the surface
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from data_pipeline.synthetic.twin.starts import LEADS
from data_pipeline.task import Variable

PRESSURE_VARIABLES = tuple(
    Variable(name, level) for name in ("z", "t", "u", "v", "q", "w", "d") for level in (500, 850)
)
SURFACE_VARIABLES = tuple(
    Variable(name) for name in ("sst", "tcw", "tcwv", "cp", "msl", "tcc", "10u", "10v", "2t", "tp", "skt")
)
VARIABLES = {
    "output": {"pl": PRESSURE_VARIABLES, "sfc": SURFACE_VARIABLES},
    "analysis": {"pl": PRESSURE_VARIABLES, "sfc": SURFACE_VARIABLES},
    "oracle": {"pl": (Variable("z", 500), Variable("t", 850)), "sfc": (Variable("2t"),)},
}
"""What each kind of file holds."""
STATIC = "static"

BITS = 16
"""Of a packed value, as in ENS-10."""
HEADER_BYTES = 125
"""Of a GRIB1 message besides its values."""


@dataclass(frozen=True)
class Block:
    """A pair of start dates in all years: what is integrated together and lost together."""

    starts: tuple[date, date]
    years: tuple[int, ...]
    oracle_years: tuple[int, ...]
    members: int
    difficulty: float
    seed: int

    def file_names(self, start: date) -> list[str]:
        """Return the names of all files of one start date."""
        return [file_name(kind, levels, start) for kind in self._copies() for levels in VARIABLES[kind]]

    def count_messages(self) -> int:
        """Return the number of GRIB messages in these files."""
        fields = {kind: sum(map(len, levels.values())) for kind, levels in VARIABLES.items()}
        per_lead = sum(copies * fields[kind] for kind, copies in self._copies().items())
        return len(self.starts) * len(LEADS) * per_lead

    def _copies(self) -> dict[str, int]:
        """How often each kind of file holds each of its fields for one start date and lead time."""
        copies = {
            "output": len(self.years) * self.members,
            "analysis": len(self.years),
            "oracle": len(self.oracle_years) * self.members,
        }
        return {kind: count for kind, count in copies.items() if count}


def file_name(kind: str, levels: str, start: date) -> str:
    """Return the name of one file: `levels` is pl or sfc."""
    return f"{kind}.{levels}.{start:%Y%m%d}"


def message_bytes(points: int) -> int:
    """Return the size of a message of so many points."""
    return HEADER_BYTES + points * BITS // 8
