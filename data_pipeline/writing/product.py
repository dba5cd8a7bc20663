"""Product: a field that summarises a distribution, and the variables in which CF files and datasets hold products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from data_pipeline.formats.cf.cell_methods import PRODUCT_ATTRIBUTE
from data_pipeline.variables.meaning import LEVEL_ATTRIBUTE
from data_pipeline.variables.thresholds import Side, Threshold
from data_pipeline.variables.units import Conversion, find_conversion

RELATIONS: dict[Side, str] = {
    ">": "greater_than", ">=": "greater_than_or_equal_to", "<": "less_than", "<=": "less_than_or_equal_to",
}  # fmt: skip
"""Names of the sides of a threshold in the attribute `spp__relative_to_threshold` of IMPROVER."""
EXTREMES = {
    "efi": "extreme forecast index", "sot": "shift of tails", "cpf": "crossing-point forecast",
}  # fmt: skip
"""Kinds of products that compare the distribution with the climate of the truth: numbers without units."""
OUTER_LEVELS = {0.9: 0.99, 0.1: 0.01}
"""The forecast's level of a shift of tails, and the level of the climate beyond which it lies if it is positive."""
CLIMATE_DAYS = 15
"""The largest difference in the day of the year between a forecast and the analyses of its climate, as at ECMWF."""
_CLIMATE = f"the climate is that of past analyses at the same hour, within {CLIMATE_DAYS} days of the day of the year"
_CELL_METHODS = {"mean": "realization: mean", "spread": "realization: standard_deviation"}
_KEPT = ("units", "standard_name", "cell_methods", "grid_mapping", "GRIB_shortName", LEVEL_ATTRIBUTE)


@dataclass(frozen=True)
class Product:
    """One field for the target at position `target`; `text` is how the option names it."""

    kind: Literal["mean", "spread", "quantile", "probability", "efi", "sot", "cpf"]
    target: int
    text: str
    level: float | None = None
    """Level of a quantile, or of the forecast's quantile in a shift of tails."""
    threshold: Threshold | None = None
    """Threshold of a probability, in the units of the target."""

    def stored(self, values: Any, factor: float, conversion: Conversion) -> tuple[Product, Any]:
        """Return the product and its values in the units of a file.

        A value v of the file is `factor * conversion.apply(v)` in the units of the target, with a positive factor. A
        spread is converted without the offset: a temperature has the same spread in degC as in K. A threshold is
        converted; a probability and a comparison with the climate stay as they are.
        """
        if self.kind in EXTREMES:
            return self, values
        if self.threshold is not None:
            limit = (self.threshold.value / factor - conversion.offset) / conversion.factor
            return replace(self, threshold=replace(self.threshold, value=round(limit, 9))), values
        if self.kind == "spread":
            return self, values / (factor * conversion.factor)
        return self, (values / factor - conversion.offset) / conversion.factor

    @property
    def suffix(self) -> str:
        """The end of the variable's name: the kind, or a name like `sot_90` or `probability_less_than`."""
        if self.kind == "sot":
            assert self.level is not None
            return f"sot_{100 * self.level:g}"
        return self.kind if self.threshold is None else f"probability_{RELATIONS[self.threshold.side]}"

    @property
    def place(self) -> float | None:
        """The level of a quantile, or the threshold of a probability; None for other products."""
        if self.threshold is not None:
            return self.threshold.value
        return self.level if self.kind == "quantile" else None


class ClimateSample(NamedTuple):
    """The past analyses with which the products of a forecast are compared."""

    first: np.datetime64
    """The earliest one."""
    years: int
    """From the earliest to the latest one."""
    days: int
    """The window of days of the year."""
    size: int


@dataclass(frozen=True)
class ProductVariable:
    """A variable of the output: a product such as a mean, or products of several levels or thresholds by dimension."""

    name: str
    suffix: str
    axis: str
    """The name of the dimension; empty without levels and thresholds."""
    values: tuple[float, ...]
    """The levels or thresholds, in increasing order."""

    @classmethod
    def of(cls, name: str, products: Sequence[Product]) -> dict[str, ProductVariable]:
        """Return the variables, by suffix, of products of members that are called `name`."""
        found: dict[str, set[float]] = {}
        for one in products:
            found.setdefault(one.suffix, set()).update([] if one.place is None else [one.place])
        axes = {suffix: f"{name}_threshold_{suffix.partition('_')[2]}" for suffix in found} | {"quantile": "quantile"}
        return {
            suffix: cls(f"{name}_{suffix}", suffix, axes[suffix] if places else "", tuple(sorted(places)))
            for suffix, places in found.items()
        }

    def index(self, product: Product) -> tuple[int, ...]:
        """Return the index of a product along the dimension of levels or thresholds, if there is one."""
        return () if product.place is None else (self.values.index(product.place),)

    def attributes(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of the variable from the attributes of the members."""
        kind, _, relation = self.suffix.partition("_")
        found = {name: members[name] for name in _KEPT if name in members} | {PRODUCT_ATTRIBUTE: kind}
        if kind in _CELL_METHODS:
            found["cell_methods"] = f"{members.get('cell_methods', '')} {_CELL_METHODS[kind]}".strip()
        if kind == "spread" and find_conversion(str(members.get("units", "")), "K"):
            found["units_metadata"] = "temperature: difference"
        names = [members.get("long_name"), members.get("standard_name"), self.name.removesuffix(f"_{self.suffix}")]
        found["long_name"] = f"{EXTREMES.get(kind, kind)} of {next(filter(None, names))}"
        if kind in EXTREMES:
            found.pop("standard_name", None)
            found |= {"units": "1", "comment": _CLIMATE}
        if kind == "sot":
            found["long_name"] = found["long_name"].replace("tails", f"tails ({relation} %)", 1)
        elif relation:
            found.pop("standard_name", None)
            found |= {"units": "1", "long_name": f"{found['long_name']} {relation.replace('_', ' ')} threshold"}
        return found

    def axis_attributes(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of the coordinate of levels or thresholds from the attributes of the members."""
        if self.suffix == "quantile":
            return {"units": "1", "long_name": "level of quantiles"}
        found = {name: members[name] for name in ("units", "standard_name") if name in members}
        relation = self.suffix.partition("_")[2]
        return found | {"long_name": "threshold", "spp__relative_to_threshold": relation}
