"""Compute the values of formulas from the fields of one member."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property

import numpy as np

from data_pipeline.formulas.formula import FORMULA_OPERATIONS, WHOLE_GLOBE, Formula
from data_pipeline.formulas.inverse_laplacian import InverseLaplacian
from data_pipeline.formulas.sphere_derivatives import EARTH_ROTATION, Band, SphereDerivatives
from data_pipeline.formulas.trajectories import Trajectories
from data_pipeline.grid import Grid
from data_pipeline.variables.units import STANDARD_GRAVITY
from data_pipeline.variables.variable import Channel

ReadRows = Callable[[Channel, slice], np.ndarray]
"""Function that returns rows (h, W) of a field, in double precision."""


Computed = dict[tuple[Hashable, ...], np.ndarray]
"""Cached arrays of one member: values by formula, first row and end row, and departure points by wind components."""


class FormulaValues:
    """Computes `formulas` on the rows of `grid`; derivatives need a latitude-longitude grid."""

    def __init__(self, grid: Grid, formulas: Sequence[Formula] = ()) -> None:
        self._height = grid.shape[0]
        self._grid = grid
        self._shared = {formula for formula, count in Counter(_parts(formulas)).items() if count > 1}

    def check(self, formula: Formula) -> None:
        """Raise `InputError` if the formula cannot be computed on the grid."""
        if formula.reach:
            _ = self._sphere
        for part in _parts([formula]):
            if part.operation == "lagrangian_change":
                _ = self._trajectories
            elif FORMULA_OPERATIONS[part.operation].reach >= WHOLE_GLOBE:
                _ = self._inverse_laplacian

    def rows_read(self, formula: Formula, rows: slice) -> slice:
        """Return the rows of the operands' fields that the values on `rows` depend on."""
        return self._wider(rows, formula.reach)

    def compute(self, formula: Formula, rows: slice, read: ReadRows, computed: Computed | None = None) -> np.ndarray:
        """Return the values (h, W) on `rows`, NaN where a field that they depend on is missing.

        `computed` caches values that several formulas need; pass the same dictionary for all formulas of a member.
        """
        key = formula, rows.start, rows.stop
        if computed is not None and key in computed:
            return computed[key]
        wide = self._wider(rows, FORMULA_OPERATIONS[formula.operation].reach)
        operands = [
            self.compute(operand, wide, read, computed) if isinstance(operand, Formula) else read(operand, wide)
            for operand in formula.operands
        ]
        values = self._evaluate(formula, operands, rows, wide, {} if computed is None else computed)
        if computed is not None and formula in self._shared:
            computed[key] = values
        return values

    def _evaluate(
        self, formula: Formula, operands: list[np.ndarray], rows: slice, wide: slice, computed: Computed
    ) -> np.ndarray:
        """Return the values on `rows` from the operands on the rows `wide`."""
        first, operation = operands[0], formula.operation
        match operation:
            case "difference" | "change":
                return first - operands[1]
            case "thickness":
                return (first - operands[1]) / STANDARD_GRAVITY
            case "speed":
                return np.sqrt(first * first + operands[1] * operands[1])
            case "stretching":  # also on grids without derivatives
                return -2 * EARTH_ROTATION * np.sin(np.radians(self._grid.cell_latitudes[rows])) * first
            case "lagrangian_change":
                return self._lagrangian_change(formula, operands, computed)[rows]
        sphere, bands = self._sphere, [Band(values, wide.start) for values in operands]
        match operation:
            case "laplacian":
                return sphere.laplacian(bands[0], rows)
            case "vorticity":
                return sphere.vorticity(bands[0], bands[1], rows)
            case "absolute_vorticity":
                return first + sphere.coriolis(rows)
            case "divergence":
                return sphere.divergence(bands[0], bands[1], rows)
            case "inverse_laplacian":
                return self._inverse_laplacian(first)[rows]
            case "balanced_geopotential" | "geopotential_tendency":
                # The tendency is in balance with a non-divergent wind that only advects its absolute vorticity
                # (Charney, Fjörtoft & von Neumann 1950, doi:10.3402/tellusa.v2i4.8607).
                return self._balanced_geopotential(first)[rows]
        east, north = sphere.gradient(bands[0], rows)
        match operation:
            case "eastward_gradient":
                return east
            case "northward_gradient":
                return north
            case "gradient":
                return np.sqrt(east * east + north * north)
        return -(bands[1].rows(rows) * east + bands[2].rows(rows) * north)

    def _balanced_geopotential(self, vorticity: np.ndarray) -> np.ndarray:
        """Return Φ on the whole globe in linear balance with `vorticity` = ∇²ψ: ∇²Φ = ∇·(f ∇ψ)."""
        globe, inverse = slice(0, self._height), self._inverse_laplacian
        streamfunction = inverse(vorticity)
        _, north = self._sphere.gradient(Band(streamfunction, 0), globe)
        source = self._sphere.coriolis(globe) * (vorticity - inverse.mean(vorticity))
        return inverse(source + self._sphere.coriolis_gradient(globe) * north)

    def _lagrangian_change(self, formula: Formula, operands: list[np.ndarray], computed: Computed) -> np.ndarray:
        now, before, *wind = operands
        if not all(np.isfinite(component).all() for component in wind):
            return np.full_like(now, np.nan)
        key = formula.operands[2:]
        if key not in computed:
            u, _, earlier_u, _ = key
            assert isinstance(u, Channel)
            assert isinstance(earlier_u, Channel)
            seconds = 3600 * (earlier_u.hours - u.hours)
            computed[key] = self._trajectories.departures((wind[0], wind[1]), (wind[2], wind[3]), seconds)
        return now - self._trajectories.values(before, computed[key])

    @cached_property
    def _sphere(self) -> SphereDerivatives:
        return SphereDerivatives(self._grid)

    @cached_property
    def _trajectories(self) -> Trajectories:
        return Trajectories(self._grid)

    @cached_property
    def _inverse_laplacian(self) -> InverseLaplacian:
        return InverseLaplacian(self._grid)

    def _wider(self, rows: slice, reach: int) -> slice:
        return slice(max(rows.start - reach, 0), min(rows.stop + reach, self._height))


def _parts(formulas: Sequence[Formula]) -> Iterator[Formula]:
    """Yield all formulas and the formulas inside them; a formula is yielded as often as it occurs."""
    for formula in formulas:
        yield formula
        yield from _parts([operand for operand in formula.operands if isinstance(operand, Formula)])
