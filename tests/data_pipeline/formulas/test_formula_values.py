"""Formulas that share parts."""

import numpy as np
import pytest

from data_pipeline.formulas.formula import Formula
from data_pipeline.formulas.formula_values import FormulaValues
from data_pipeline.formulas.sphere_derivatives import SphereDerivatives
from data_pipeline.grid import Grid

TEXTS = [
    "vorticity@500", "absolute_vorticity@500", "advection(absolute_vorticity@500)", "geopotential_tendency@500",
    "change(vorticity@500, 24)", "laplacian(vorticity@500)",
]  # fmt: skip


@pytest.mark.parametrize("rows", [slice(0, 19), slice(3, 8)], ids=["globe", "tile"])
def test_a_part_of_several_formulas_is_computed_once_for_the_same_rows(monkeypatch, rows):
    grid, formulas = Grid.regular(19, 36), [Formula.parse(text) for text in TEXTS]
    random = np.random.default_rng(0)
    fields = {leaf: random.normal(size=grid.shape) for formula in formulas for leaf in formula.leaves}

    def read(leaf, wide):
        return fields[leaf][wide].copy()

    alone = [FormulaValues(grid).compute(formula, rows, read) for formula in formulas]
    calls = []
    original = SphereDerivatives.vorticity

    def counted(self, u, v, inner):
        calls.append((inner.start, inner.stop, u.values.sum()))
        return original(self, u, v, inner)

    monkeypatch.setattr(SphereDerivatives, "vorticity", counted)
    values, computed = FormulaValues(grid, formulas), {}
    together = [values.compute(formula, rows, read, computed) for formula in formulas]
    assert all(np.array_equal(one, other) for one, other in zip(together, alone, strict=True))
    assert len(calls) == len(set(calls))
    if rows.stop == 19:
        assert len(calls) == 2, "of the lead time and of 24 h before"
