"""Open GRIB or NetCDF files and Zarr stores as lazy xarray datasets, or as fields to read samples from.

The first bytes of the first file decide which format is read (`formats.registry`). What only some callers need, such as
xarray, is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.common.files import Paths, expand_addresses
from data_pipeline.formats.catalog import SINGLE, Catalog, Summary
from data_pipeline.formats.cf.cf_catalog import BlockCatalog
from data_pipeline.formats.cube import Cube, Missing, fields_of
from data_pipeline.formats.derived import DerivedCatalog, derived
from data_pipeline.formats.format import Names, Request
from data_pipeline.formats.registry import format_of
from data_pipeline.formats.stated_intervals import StatedIntervals
from data_pipeline.formats.system_files import SystemFiles
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points, has_ids
from data_pipeline.protocols import Fields
from data_pipeline.regridding.target import TargetGrid
from data_pipeline.task import Variable

if TYPE_CHECKING:
    import xarray as xr

    from data_pipeline.formats.cf.dataset_catalog import Given
    from data_pipeline.formats.datasets import Chunks

ForecastKind = Literal["members", "normal", "quantiles"]
SUMMARIES_OF_KIND: dict[ForecastKind, tuple[Summary, ...]] = {
    "members": ("",),
    "normal": ("mean", "std"),
    "quantiles": ("quantile",),
}
"""The fields that each kind of forecast needs."""
_SUMMARY_WORDS = {"": "members", "mean": "a mean", "std": "a standard deviation", "quantile": "quantiles"}


def open_ensemble(
    paths: Paths | Given,
    variables: Sequence[Variable | str] | None = None,
    lead_times: Sequence[int] | None = None,
    *,
    names: Names = None,
    target: TargetGrid | None = None,
    intervals: StatedIntervals | None = None,
    missing: Missing = "error",
    chunks: Chunks = "auto",
    dtype: np.dtype = SINGLE,
) -> xr.Dataset:
    """Open forecasts as (init_time, lead_time, number, [level,] latitude, longitude), float32 or float64.

    `paths` are files, folders, patterns or URLs of GRIB, NetCDF or Zarr; or a dataset of xarray, an object with the
    method `to_xarray`, such as a field list of earthkit-data, or a DataTree with the group `ensemble`. `variables`,
    such as `2t` or `t@850`, and `lead_times` (hours) select fields; None selects all. Variables have their GRIB
    shortName. `number` is 0 for a control forecast and for files without members. `level` is in hPa. Where one name
    exists both at the surface and on pressure levels, see `datasets.select_variable`. Fields are brought to the grid of
    `target`; without it they keep their grid, which must be regular. A `target` without a method takes values from the
    points of its grid, and raises an `InputError` if the fields lack one.

    A missing field raises an `InputError`, or is NaN with `missing="mask"`. Levels that were not selected for a
    variable are NaN. With `chunks="auto"` the arrays are dask arrays with one chunk per start and lead time; with None
    they are read when they are indexed.
    """
    catalog = _catalog(_addressed(paths, "ensemble"), _parsed(variables), names, intervals)
    return _dataset(_on_target(Cube.forecasts(catalog, lead_times, missing, target)), chunks, np.dtype(dtype))


def open_analysis(
    paths: Paths | Given,
    variables: Sequence[Variable | str] | None = None,
    *,
    names: Names = None,
    target: TargetGrid | None = None,
    intervals: StatedIntervals | None = None,
    missing: Missing = "error",
    chunks: Chunks = "auto",
) -> xr.Dataset:
    """Open analyses as (time, [level,] latitude, longitude), float32; otherwise like `open_ensemble`.

    Of a DataTree, they are the group `analysis`, and those of `open_static` the group `static`.

    Analyses are fields of lead time 0, and NetCDF fields without a start. Longer lead times are ignored, except those
    of requested amounts and extremes, which come from short forecasts.
    """
    catalog = _catalog(_addressed(paths, "analysis"), _parsed(variables), names, intervals, analyses=True)
    return _dataset(_on_target(Cube.analyses(catalog, missing, target)), chunks)


def open_static(
    paths: Paths | Given,
    wanted: Sequence[str] | None = None,
    *,
    names: Names = None,
    target: TargetGrid | None = None,
) -> xr.Dataset:
    """Open surface fields, all or the names in `wanted`, as (latitude, longitude); their dates are ignored."""
    return _dataset(_on_target(_static(_addressed(paths, "static"), wanted, names, target)), None)


def static_dataset(paths: Paths, names: Names, target: TargetGrid | None) -> xr.Dataset:
    """Open all static fields like `open_static`; fields that lack a point of the `target` keep their grid."""
    return _dataset(_static(paths, None, names, target), None)


def ensemble_fields(
    paths: Paths,
    variables: Sequence[Variable],
    lead_times: Sequence[int],
    *,
    names: Names = None,
    target: TargetGrid | None = None,
    intervals: StatedIntervals | None = None,
    missing: Missing = "error",
) -> Fields:
    """Open forecasts of `variables` at `lead_times` (hours) to read samples from.

    A missing field raises an `InputError`, or is NaN with `missing="mask"`. Variables that the files lack are derived
    from others where that is exact (`formats.equivalents`).
    """
    return fields_of(Cube.forecasts(_catalog(paths, variables, names, intervals), lead_times, missing, target))


def analysis_fields(
    paths: Paths,
    variables: Sequence[Variable],
    *,
    names: Names = None,
    target: TargetGrid | None = None,
    intervals: StatedIntervals | None = None,
    missing: Missing = "error",
) -> Fields:
    """Open analyses as forecasts with lead time 0 and one member; their start is the valid time."""
    return fields_of(Cube.analyses(_catalog(paths, variables, names, intervals, analyses=True), missing, target))


def summary_fields(
    paths: Paths,
    variables: Sequence[Variable],
    lead_times: Sequence[int],
    kind: ForecastKind | None = None,
    *,
    names: Names = None,
    target: TargetGrid | None = None,
    intervals: StatedIntervals | None = None,
) -> tuple[ForecastKind, Fields]:
    """Open forecasts that are members, a mean and a standard deviation, or quantiles; return their kind and fields.

    In place of members, `numbers` count a mean and a standard deviation (`catalog.MEAN`, `STD`) or the levels of
    quantiles (in `catalog.LEVEL_STEPS`). Files that hold several kinds need a `kind`. Missing fields are NaN.
    """
    catalog = _gather(paths, Request(variables, names, summaries=True))
    if isinstance(catalog, BlockCatalog):
        catalog = catalog.forecasts()
    summaries = getattr(catalog, "summaries", np.full(len(catalog.rows), ""))  # a format may know members only
    found = sorted({*summaries.tolist()})
    kinds = [name for name, parts in SUMMARIES_OF_KIND.items() if {*parts} <= {*found}]
    if kind is None and len(kinds) > 1:
        raise InputError(
            f"{catalog} holds forecasts of the kinds {' and '.join(kinds)}; choose one with kind={kinds[0]}"
        )
    if not kinds or (kind is not None and kind not in kinds):
        has = " and ".join(_SUMMARY_WORDS[part] for part in found)
        raise InputError(
            f"{catalog} has {has}, which is no forecast of {f'the kind {kind}' if kind else 'any kind'}; a forecast is "
            "members, a mean and a standard deviation, or quantiles"
        )
    chosen = kind or kinds[0]
    catalog = catalog.where(np.isin(summaries, SUMMARIES_OF_KIND[chosen]))
    catalog = intervals.apply(catalog) if intervals else catalog
    made = derived(catalog, variables, analyses=False)
    if chosen != "members" and isinstance(made, DerivedCatalog) and (made.rows["count"] > 1).any():
        row = int(np.flatnonzero(made.rows["count"] > 1)[0])
        raise InputError(
            f"{catalog} has {_SUMMARY_WORDS[SUMMARIES_OF_KIND[chosen][-1]]} over other intervals or of other variables "
            f"than {made.wanted[made.rows['variable'][row]]}, and those cannot be added; write them for this variable"
        )
    return chosen, fields_of(Cube.forecasts(made, lead_times, "mask", target))


def lead_times_of(paths: Paths, variable: Variable, *, names: Names = None) -> list[int]:
    """Return the lead times (hours) of the forecasts of a variable, as in the files or derived from others there."""
    steps = np.unique(derived(_gather(paths, Request([variable], names)), [variable], analyses=False).rows["step"])
    return [step // 60 for step in steps.tolist() if step >= 0 and step % 60 == 0]


def grid_of_files(paths: Paths, names: Names = None) -> Grid:
    """Return the grid of the first field of the first file; in formats beside GRIB, NetCDF and Zarr, of all."""
    address = expand_addresses(paths)[0]
    return format_of(address).first_grid(address, names)


def stations_in(path: Paths, names: Names = None) -> Points:
    """Return the stations in a file of them: a table of their positions, or any file of values at stations."""
    address = expand_addresses(path)[0]
    found = format_of(address).stations(address, names)
    if not isinstance(found, Points) or not has_ids(found):
        raise InputError(f"{address} holds {found}, not stations with ids; name a table or a NetCDF file of stations")
    return found


def _parsed(variables: Sequence[Variable | str] | None) -> list[Variable] | None:
    if isinstance(variables, str):
        raise InputError(f"variables must be a list, got {variables!r}; write [{variables!r}]")
    if variables is None:
        return None
    return [one if isinstance(one, Variable) else Variable.parse(one) for one in variables]


def _static(paths: Paths, wanted: Sequence[str] | None, names: Names, target: TargetGrid | None) -> Cube:
    variables = None if wanted is None else [Variable(name) for name in wanted]
    return Cube.of(_gather(paths, Request(variables, names, static=True)), {}, target)


def _on_target(cube: Cube) -> Cube:
    """Return the cube; raise an `InputError` if its fields lack points of the grid that they shall be read on."""
    if cube.target and not cube.target.grid.matches(cube.reader.grid):
        raise InputError(
            f"{cube.catalog} is on {cube.reader.grid}, which lacks points of the target, {cube.target.grid}; give the "
            "target a method, such as TargetGrid(grid, 'bilinear') or TargetGrid(grid, 'conservative')"
        )
    return cube


def _dataset(cube: Cube, chunks: Chunks, dtype: np.dtype = SINGLE) -> xr.Dataset:
    with package("a dataset of xarray", "train"):
        from data_pipeline.formats.datasets import open_cube

    return open_cube(cube, chunks, dtype)


def _addressed(paths: Paths | Given, part: str) -> Paths:
    """Return paths as they are, and the address of a dataset or of what becomes one."""
    if hasattr(paths, "to_xarray") or type(paths).__module__.partition(".")[0] == "xarray":
        with package("a dataset of xarray", "train"):
            from data_pipeline.formats.cf.dataset_catalog import DatasetAddress

        return DatasetAddress.of(cast("Given", paths), part)
    return paths


def _gather(paths: Paths, request: Request) -> Catalog:
    """Return the fields that are wanted, as the files have them."""
    addresses = expand_addresses(paths)
    return format_of(addresses[0]).gather(addresses, request)


def _catalog(
    paths: Paths,
    variables: Sequence[Variable] | None,
    names: Names,
    intervals: StatedIntervals | None,
    analyses: bool = False,
) -> Catalog:
    """Return the fields of `variables`, stored or made from others."""
    catalog: Catalog = _gather(paths, Request(variables, names))
    if isinstance(catalog, BlockCatalog):
        catalog = catalog.analyses() if analyses else catalog.forecasts()
    catalog = paths.numbered(catalog) if isinstance(paths, SystemFiles) else catalog
    catalog = intervals.apply(catalog) if intervals else catalog
    return catalog if variables is None else derived(catalog, variables, analyses)
