"""Products: fields that summarise a corrected distribution: mean, spread, quantiles, probabilities of thresholds.

The extreme forecast index, the shift of tails and the crossing-point forecast compare it with the climate of the truth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.task import Task, Variable
from data_pipeline.variables.thresholds import Threshold, parse_thresholds
from data_pipeline.writing.product import EXTREMES, OUTER_LEVELS, Product
from models.engines.engine import Prediction
from models.members.truth_climate import TruthClimate

EXAMPLES = "write mean, spread, quantile 0.9, efi, sot 90, sot 10, cpf, or a probability such as 'probability > 0 degC'"


def products_of_tasks(texts: Sequence[str], tasks: Sequence[Task]) -> list[tuple[Product, ...]]:
    """Return the products of each task that the option `products` names.

    Raises `InputError` for a text that names no product of any task, and for a product that is named twice.
    """
    found: list[list[Product]] = [[] for _ in tasks]
    for text in texts:
        errors = []
        for own, task in zip(found, tasks, strict=True):
            try:
                own += _products(text, task)
            except InputError as error:
                errors.append(error)
        if len(errors) == len(tasks):
            raise errors[0]
    for own in found:
        times = Counter((one.target, one.suffix, one.place) for one in own)
        if twice := [one.text for one in own if times[one.target, one.suffix, one.place] > 1]:
            names = " and as ".join(dict.fromkeys(twice))
            raise InputError(f"products names a field twice, as {names}; name each once")
    return [tuple(own) for own in found]


def _products(text: str, task: Task) -> list[Product]:
    words = text.strip()
    positions = range(len(task.targets))
    if words in ("mean", "spread", "efi", "cpf"):
        return [Product(words, target, words) for target in positions]  # type: ignore[arg-type]
    if form := re.fullmatch(r"sot\s+(\S+)", words):
        level = {f"{100 * one:g}": one for one in OUTER_LEVELS}.get(form[1])
        if level is None:
            raise InputError(f"products: {text!r} must be sot 90 or sot 10, the shift of the upper or the lower tail")
        return [Product("sot", target, f"sot {form[1]}", level=level) for target in positions]
    if form := re.fullmatch(r"quantile\s+(\S+)", words):
        try:
            level = float(form[1])
        except ValueError:
            level = -1.0
        if not 0 < level < 1:
            raise InputError(f"products: the level of {text!r} must be between 0 and 1, such as quantile 0.9")
        return [Product("quantile", target, f"quantile {level:g}", level=level) for target in positions]
    if form := re.fullmatch(r"probability\s+(.+)", words):
        try:
            thresholds = parse_thresholds([form[1]], task)
        except InputError as error:
            raise InputError(f"products: {error}") from None
        if any(one.climatological for of_target in thresholds for one in of_target):
            raise InputError(
                f"products: {text!r} is a percentile of the climatology, which correct does not read; name a value "
                "with its units"
            )
        return [
            Product("probability", target, f"probability {one.label}", threshold=one)
            for target, of_target in enumerate(thresholds)
            for one in of_target
        ]
    raise InputError(f"products: cannot read {text!r}; {EXAMPLES}")


def compares(texts: Sequence[str]) -> bool:
    """Return whether the option `products` names a comparison with the climate of the truth."""
    return any(text.split()[:1] and text.split()[0] in EXTREMES for text in texts)


def product_fields(
    products: Sequence[Product],
    prediction: Prediction,
    covered: np.ndarray,
    targets: Sequence[Variable],
    climate: TruthClimate | None = None,
) -> np.ndarray:
    """Return the products (P, h, w) in the units of the targets, probabilities between 0 and 1.

    Means and quantiles lie within the physical bounds of their target. Where `covered` (T, h, w) is False, because a
    raw member of the target is missing, products are missing (NaN). The kinds `EXTREMES` need a `climate`, and are
    missing where it has no value.
    """
    fields = np.empty((len(products), *covered.shape[1:]))
    levels = list(dict.fromkeys(product.level for product in products if product.level is not None))
    quantiles = prediction.quantiles(np.array(levels)) if levels else np.empty(0)
    kinds = {product.kind for product in products}
    sources = {"mean": prediction.mean, "spread": prediction.std}
    if climate is not None:
        sources |= {"efi": partial(climate.index, prediction), "cpf": partial(climate.crossing, prediction)}
    of_kinds = {kind: compute() for kind, compute in sources.items() if kind in kinds}
    for field, product in zip(fields, products, strict=True):
        target = product.target
        if product.threshold is not None:
            field[...] = _probability(prediction, product.threshold, target, len(targets))
        elif product.level is not None:
            found = quantiles[levels.index(product.level)]
            if product.kind == "sot":
                assert climate is not None
                found = climate.shift(found, product.level)
            field[...] = found[target]
        else:
            field[...] = of_kinds[product.kind][target]
        if product.kind in ("mean", "quantile") and targets[target].bounds != (None, None):
            field.clip(*targets[target].bounds, out=field)
        field[~covered[target]] = np.nan
    return fields


def _probability(prediction: Prediction, threshold: Threshold, target: int, count: int) -> np.ndarray:
    """Return the probability (h, w) that a target lies on the side of a threshold."""
    limit = np.float32(threshold.value)
    if threshold.above == threshold.closed:
        # P(Y >= v) = 1 - P(Y <= the number below v), and likewise P(Y < v); networks compute in single precision.
        limit = np.nextafter(limit, np.float32(-np.inf))
    below: np.ndarray = prediction.cdf(np.full((1, count, 1, 1), float(limit)))[0, target]
    return 1 - below if threshold.above else below
