"""Task: what is predicted from what. Names are GRIB shortNames and come from nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from data_pipeline.errors import InputError

UNITS = {
    "z": "m² s⁻²", "t": "K", "u": "m s⁻¹", "v": "m s⁻¹", "q": "kg kg⁻¹", "w": "Pa s⁻¹", "d": "s⁻¹",
    "sst": "K", "tcw": "kg m⁻²", "tcwv": "kg m⁻²", "cp": "m", "msl": "Pa", "tcc": "1", "10u": "m s⁻¹",
    "10v": "m s⁻¹", "2t": "K", "tp": "m", "skt": "K", "10si": "m s⁻¹", "10fg": "m s⁻¹", "i10fg": "m s⁻¹",
    "100si": "m s⁻¹", "2d": "K", "mx2t": "K", "mn2t": "K", "lsp": "m", "ssrd": "J m⁻²", "swh": "m",
}  # fmt: skip
NEVER_NEGATIVE = (
    "q", "tcw", "tcwv", "cp", "tp", "lsp", "ssrd", "swh", "10si", "10fg", "i10fg", "100si",
    "t", "2t", "skt", "sst", "2d", "mx2t", "mn2t",
)  # fmt: skip
BOUNDS: dict[str, tuple[float, float | None]] = dict.fromkeys(NEVER_NEGATIVE, (0.0, None)) | {"tcc": (0.0, 1.0)}

VECTOR_COMPONENTS = (
    "u", "v", "10u", "10v", "100u", "100v", "200u", "200v", "u10n", "v10n", "ewss", "nsss", "iews", "inss",
    "lgws", "mgws", "ust", "vst", "viwve", "viwvn", "ocu", "ocv",
)  # fmt: skip
"""Eastward and northward components of winds, stresses, fluxes and currents."""

POSITION = ("sin_latitude", "cos_latitude_cos_longitude", "cos_latitude_sin_longitude")
"""Static fields that every grid provides by itself: the point on the unit sphere."""


@dataclass(frozen=True, order=True)
class Variable:
    """One field of a forecast: a GRIB shortName and, aloft, its pressure level in hPa."""

    name: str
    level: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.name):
            raise InputError(f"{self.name!r} is not a GRIB shortName")
        if not 0 <= self.level <= 1100:
            raise InputError(f"{self.name}@{self.level}: a pressure level lies between 1 and 1100 hPa")

    @classmethod
    def parse(cls, text: str) -> Variable:
        """Read `2t` (surface) or `t@850` (850 hPa).

        >>> Variable.parse("t@850")
        Variable(name='t', level=850)
        """
        name, at, level = str(text).partition("@")
        if at and not level.isdigit():
            raise InputError(f"cannot read the variable {text!r}; write a shortName such as 2t, or t@850 for 850 hPa")
        return cls(name, int(level) if at else 0)

    @property
    def units(self) -> str:
        """Units as stored in GRIB, or an empty string where this project does not know the variable."""
        return UNITS.get(self.name, "")

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Physical lower and upper bound, None where there is none."""
        return BOUNDS.get(self.name, (None, None))

    @property
    def parity(self) -> int:
        """-1 if the values change sign from one side of a pole to the other, else 1.

        East and north turn round at a pole: a wind that blows straight across it comes from the north on one side and
        from the south on the other.
        """
        return -1 if self.name in VECTOR_COMPONENTS else 1

    def __str__(self) -> str:
        return f"{self.name}@{self.level}" if self.level else self.name


@dataclass(frozen=True)
class Task:
    """Correct the `targets` at `lead_times` (hours) from the ensemble of the `inputs`.

    Every target is one of the inputs: the raw ensemble is where each correction starts. `static` names further
    fields that do not change with time (`lsm`, `z` of the surface) besides the position, which is always there.
    """

    name: str
    inputs: tuple[Variable, ...]
    targets: tuple[Variable, ...]
    lead_times: tuple[int, ...]
    static: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("inputs", "targets"):
            values = tuple(
                v if isinstance(v, Variable) else Variable.parse(v) for v in _listed(name, getattr(self, name))
            )
            object.__setattr__(self, name, values)
            if not values or len(set(values)) < len(values):
                raise InputError(
                    f"task {self.name}: {name} must be different variables, at least one, got {_join(values)}"
                )
        if missing := [v for v in self.targets if v not in self.inputs]:
            raise InputError(
                f"task {self.name}: add the target {_join(missing)} to the inputs, the correction starts from it"
            )
        leads = tuple(_listed("lead_times", self.lead_times))
        if not leads or any(type(lead) is not int or lead < 0 for lead in leads) or list(leads) != sorted(set(leads)):
            raise InputError(f"task {self.name}: lead_times must be increasing whole hours, got {list(leads)}")
        object.__setattr__(self, "lead_times", leads)
        object.__setattr__(self, "static", tuple(str(name) for name in _listed("static", self.static)))

    @property
    def target_channels(self) -> tuple[int, ...]:
        """Index of each target among the inputs."""
        return tuple(self.inputs.index(target) for target in self.targets)

    @property
    def parity(self) -> tuple[int, ...]:
        """`Variable.parity` of each input."""
        return tuple(variable.parity for variable in self.inputs)

    @property
    def static_names(self) -> tuple[str, ...]:
        """All static channels in the order of `Sample.static`."""
        return POSITION + self.static

    def only_targets(self) -> Task:
        """Return the same task from the targets' own ensemble alone."""
        return replace(self, inputs=self.targets, static=())

    def to_json(self) -> dict:
        """Return plain values from which `Task(**values)` makes this task again."""
        return {
            "name": self.name, "inputs": [str(v) for v in self.inputs], "targets": [str(v) for v in self.targets],
            "lead_times": list(self.lead_times), "static": list(self.static),
        }  # fmt: skip


def _listed(name: str, values: object) -> Iterable:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name} must be a list, got {values!r}")
    return values


def _join(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "none"
