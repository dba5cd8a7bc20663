"""Values of formulas from the fields of one member."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from data_pipeline.formulas.formula import FORMULA_OPERATIONS, WHOLE_GLOBE, Formula
from data_pipeline.formulas.inverse_laplacian import InverseLaplacian
from data_pipeline.formulas.sphere_derivatives import Band, SphereDerivatives
from data_pipeline.grid import Grid
from data_pipeline.units import STANDARD_GRAVITY
from data_pipeline.variable import Channel

ReadRows = Callable[[Channel, slice], np.ndarray]
"""Returns rows (h, W) of a field, in double precision."""


class FormulaValues:
    """Computes formulas on the rows of `grid`; derivatives need a latitude-longitude grid."""

    def __init__(self, grid: Grid) -> None:
        self._height = grid.shape[0]
        self._grid = grid
        self._derivatives: SphereDerivatives | None = None
        self._inverse: InverseLaplacian | None = None

    def check(self, formula: Formula) -> None:
        """Raise `InputError` if the formula cannot be computed on the grid."""
        if formula.reach:
            self._sphere()
        if formula.reach >= WHOLE_GLOBE:
            self._inverse_laplacian()

    def rows_read(self, formula: Formula, rows: slice) -> slice:
        """Return the rows of the fields that the values on `rows` depend on."""
        return self._wider(rows, formula.reach)

    def compute(self, formula: Formula, rows: slice, read: ReadRows) -> np.ndarray:
        """Return the values (h, W) on `rows`, NaN where a field that they depend on is missing."""
        wide = self._wider(rows, FORMULA_OPERATIONS[formula.operation].reach)
        operands = [
            self.compute(operand, wide, read) if isinstance(operand, Formula) else read(operand, wide)
            for operand in formula.operands
        ]
        first = operands[0]
        match formula.operation:
            case "difference" | "change":
                return first - operands[1]
            case "thickness":
                return (first - operands[1]) / STANDARD_GRAVITY
            case "speed":
                return np.sqrt(first * first + operands[1] * operands[1])
        sphere, bands = self._sphere(), [Band(values, wide.start) for values in operands]
        inner = [band.rows(rows) for band in bands]
        match formula.operation:
            case "laplacian":
                return sphere.laplacian(bands[0], rows)
            case "vorticity":
                return sphere.vorticity(bands[0], bands[1], rows)
            case "absolute_vorticity":
                return sphere.vorticity(bands[0], bands[1], rows) + sphere.coriolis(rows)
            case "divergence":
                return sphere.divergence(bands[0], bands[1], rows)
            case "inverse_laplacian":
                return self._inverse_laplacian()(first)[rows]
            case "geopotential_tendency":
                return self._geopotential_tendency(bands[0], bands[1])[rows]
        east, north = sphere.gradient(bands[0], rows)
        match formula.operation:
            case "eastward_gradient":
                return east
            case "northward_gradient":
                return north
            case "gradient":
                return np.sqrt(east * east + north * north)
        return -(inner[1] * east + inner[2] * north)

    def _geopotential_tendency(self, u: Band, v: Band) -> np.ndarray:
        """Return f ∇⁻²(-u·∇(ζ + f)) (H, W), m² s⁻³.

        It is the tendency of the geopotential of a wind without divergence whose absolute vorticity is only advected,
        in balance with the Coriolis force (Charney, Fjörtoft & von Neumann 1950, doi:10.3402/tellusa.v2i4.8607).
        """
        sphere, all_rows = self._sphere(), slice(0, self._height)
        coriolis = sphere.coriolis(all_rows)
        east, north = sphere.gradient(Band(sphere.vorticity(u, v, all_rows) + coriolis, 0), all_rows)
        return coriolis * self._inverse_laplacian()(-(u.values * east + v.values * north))

    def _inverse_laplacian(self) -> InverseLaplacian:
        if self._inverse is None:
            self._inverse = InverseLaplacian(self._grid)
        return self._inverse

    def _sphere(self) -> SphereDerivatives:
        if self._derivatives is None:
            self._derivatives = SphereDerivatives(self._grid)
        return self._derivatives

    def _wider(self, rows: slice, reach: int) -> slice:
        return slice(max(rows.start - reach, 0), min(rows.stop + reach, self._height))
