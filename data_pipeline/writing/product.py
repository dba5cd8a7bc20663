"""Product: a field that summarises a distribution, and the variables in which CF files and datasets hold products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from data_pipeline.formats.cf.cell_methods import PRODUCT_ATTRIBUTE
from data_pipeline.variables.meaning import LEVEL_ATTRIBUTE
from data_pipeline.variables.thresholds import Side, Threshold
from data_pipeline.variables.units import Conversion, find_conversion

RELATIONS: dict[Side, str] = {
    ">": "greater_than", ">=": "greater_than_or_equal_to", "<": "less_than", "<=": "less_than_or_equal_to",
}  # fmt: skip
"""Names of the sides of a threshold in the attribute `spp__relative_to_threshold` of IMPROVER."""
_CELL_METHODS = {"mean": "realization: mean", "spread": "realization: standard_deviation"}
_KEPT = ("units", "standard_name", "cell_methods", "grid_mapping", "GRIB_shortName", LEVEL_ATTRIBUTE)


@dataclass(frozen=True)
class Product:
    """One field for the target at position `target`; `text` is how the option names it."""

    kind: Literal["mean", "spread", "quantile", "probability"]
    target: int
    text: str
    level: float | None = None
    """Level of a quantile."""
    threshold: Threshold | None = None
    """Threshold of a probability, in the units of the target."""

    def stored(self, values: Any, factor: float, conversion: Conversion) -> tuple[Product, Any]:
        """Return the product and its values in the units of a file.

        A value v of the file is `factor * conversion.apply(v)` in the units of the target, with a positive factor. A
        spread is converted without the offset: a temperature has the same spread in degC as in K. A threshold is
        converted, and a probability stays as it is.
        """
        if self.threshold is not None:
            limit = (self.threshold.value / factor - conversion.offset) / conversion.factor
            return replace(self, threshold=replace(self.threshold, value=round(limit, 9))), values
        if self.kind == "spread":
            return self, values / (factor * conversion.factor)
        return self, (values / factor - conversion.offset) / conversion.factor

    @property
    def suffix(self) -> str:
        """The end of the variable's name: `mean`, `spread`, `quantile`, or a name like `probability_less_than`."""
        return self.kind if self.threshold is None else f"probability_{RELATIONS[self.threshold.side]}"

    @property
    def place(self) -> float | None:
        """The level or the threshold; None for mean and spread."""
        return self.level if self.threshold is None else self.threshold.value


@dataclass(frozen=True)
class ProductVariable:
    """A variable of products: a mean or a spread, or the fields of several levels or thresholds along a dimension."""

    name: str
    suffix: str
    axis: str
    """The name of the dimension; empty for mean and spread."""
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
        found["long_name"] = f"{kind} of {next(filter(None, names))}"
        if relation:
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
