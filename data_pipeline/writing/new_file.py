"""NewForecastFile: write forecasts to a new NetCDF file or Zarr store that follows the CF conventions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.common.files import atomic_path, is_zarr_folder, remove_abandoned_files
from data_pipeline.formats.netcdf.file import library_lock
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import INSTANT, LEVEL_ATTRIBUTE, UNKNOWN, Meaning
from data_pipeline.variables.parameters import PARAMETERS
from data_pipeline.writing.product import ProductVariable
from data_pipeline.writing.value_packing import FILL, ValuePacking

_EPOCH = "hours since 1970-01-01 00:00:00"
_METHODS = {"instant": "point", "accumulation": "sum", "mean": "mean", "maximum": "maximum", "minimum": "minimum"}


@dataclass(frozen=True)
class NewVariable:
    """A variable to write: the members of a forecast called `name`, or products of them.

    `intervals` (minutes) has one entry per lead time, see `Meaning`. `attributes` are added, or replace default ones.
    """

    name: str
    variable: Variable
    units: str
    intervals: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    level: str = ""
    """The level, as in `Meaning`."""
    products: ProductVariable | None = None

    @classmethod
    def of(cls, meaning: Meaning) -> NewVariable:
        """Return the variable for members with this meaning."""
        variable = meaning.variable
        known = PARAMETERS.get(variable.name)
        units = known.units.replace("**", "") if known else meaning.units
        units = "1" if units.startswith("(0") else units.replace(" of water equivalent", "")
        return cls(variable_name(variable), variable, units, meaning.intervals, level=meaning.level)


def variable_name(variable: Variable) -> str:
    """Return the name of a variable in a NetCDF file, which starts with a letter.

    >>> [variable_name(Variable.parse(text)) for text in ("2t", "t@850", "tp:24h")]
    ['t2m', 't_850', 'tp_24h']
    """
    known = PARAMETERS[variable.name].spellings.split() if variable.name in PARAMETERS else []
    names = [name for name in (variable.name, *known) if name[0].isalpha() and name.isidentifier()]
    parts = [names[0] if names else f"var_{variable.name}", str(variable.level) if variable.level else ""]
    parts += [f"{variable.period}h" if variable.period else "", variable.process]
    return "_".join(filter(None, parts))


class Target(Protocol):
    """A file or store of arrays with attributes that is being written."""

    sizes: dict[str, int]
    """The dimensions."""
    names: set[str]
    """The variables."""

    def create(
        self, name: str, kind: Any, dimensions: tuple[str, ...], attributes: Mapping[str, Any], values: Any = None,
        cells: int = 0,
    ) -> None:  # fmt: skip
        """Make a variable; one without `values` holds fields, whose last `cells` dimensions are horizontal."""

    def put(self, name: str, key: tuple[int, ...], values: np.ndarray) -> None:
        """Write the values of a variable at a position of its first dimensions."""

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Write the attributes of the whole."""


class _NetCDFTarget:
    """A NetCDF-4 file; fields are chunks, compressed with zlib."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.sizes, self.names = dataset, dict[str, int](), set[str]()

    def create(
        self, name: str, kind: Any, dimensions: tuple[str, ...], attributes: Mapping[str, Any], values: Any = None,
        cells: int = 0,
    ) -> None:  # fmt: skip
        """Make a variable and the dimensions that it has first."""
        for dimension in dimensions:
            if dimension not in self.dataset.dimensions:
                self.dataset.createDimension(dimension, self.sizes[dimension])
        options: dict[str, Any] = {}
        if values is None:
            sizes = [self.sizes[dimension] for dimension in dimensions]
            chunks = [1] * (len(sizes) - cells) + sizes[len(sizes) - cells :]
            options = {"compression": "zlib", "complevel": 1, "shuffle": True, "chunksizes": chunks, "fill_value": FILL}
        created = self.dataset.createVariable(name, kind, dimensions, **options)
        created.set_auto_maskandscale(False)
        created.setncatts(dict(attributes))
        if values is not None:
            created[...] = values
        self.names.add(name)

    def put(self, name: str, key: tuple[int, ...], values: np.ndarray) -> None:
        """Write values of a variable."""
        with library_lock():
            self.dataset[name][key] = values

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Write the attributes of the file."""
        with library_lock():
            self.dataset.setncatts(dict(attributes))


class NewForecastFile:
    """A file that is being written; `put` writes one variable of one forecast.

    With several starts, start and lead time are dimensions. A single start is a scalar coordinate, and the dimension of
    lead times is called `time` and holds the valid times, because programs such as CDO read at most four dimensions.
    """

    def __init__(
        self,
        target: Target,
        grid: Grid,
        starts: np.ndarray,
        leads: Sequence[int],
        numbers: Sequence[int],
        variables: Sequence[NewVariable],
    ) -> None:
        self._target, self._grid = target, grid
        self._starts = [*np.asarray(starts).astype("datetime64[s]")]
        self._leads, self._numbers = list(leads), list(numbers)
        self._axis_of: dict[tuple[int, ...], str] = {}
        self._packing = ValuePacking.of(np.dtype("f4"), {"_FillValue": FILL})
        self._single = len(self._starts) == 1
        hours = np.array([start.astype(np.int64) / 3600 for start in self._starts])
        reference = {"standard_name": "forecast_reference_time", "units": _EPOCH, "calendar": "standard"}
        name = "forecast_reference_time"
        self._coordinate(name, () if self._single else (name,), hours[0] if self._single else hours, "f8", **reference)
        if any(variable.products is None for variable in variables):
            self._coordinate(
                "number", ("number",), self._numbers, "i4", standard_name="realization", units="1", axis="E"
            )
        self._cells = self._define_cells()
        for variable in variables:
            self._define(variable)

    def put(self, name: str, start: np.datetime64, lead: int, values: np.ndarray, index: tuple[int, ...] = ()) -> None:
        """Write the members (M, H, W) of one forecast, or the product (H, W) at an `index`; NaN is missing."""
        cells = values.shape[-2:-1] if isinstance(self._grid, Points) else values.shape[-2:]
        packed = self._packing.pack(values).reshape(*values.shape[:-2], *cells)
        key: tuple[Any, ...] = (self._leads.index(lead), *index)
        if not self._single:
            key = (self._starts.index(start.astype("datetime64[s]")), *key)
        self._target.put(name, key, packed)

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Write the attributes of the file."""
        self._target.finish({"Conventions": "CF-1.11", **attributes})

    def _coordinate(self, name: str, dimensions: tuple[str, ...], values: Any, kind: str, **attributes: Any) -> None:
        array = np.asarray(values)
        self._target.sizes |= dict(zip(dimensions, array.shape, strict=True))
        self._target.create(name, kind, dimensions, attributes, array)

    def _axis(self, intervals: tuple[int, ...]) -> str:
        """Return the name of the dimension of lead times with these `intervals`; define it and its bounds if needed."""
        if set(intervals) & {UNKNOWN}:
            intervals = (INSTANT,) * len(intervals)
        if intervals not in self._axis_of:
            known = f"_{max(intervals) / 60:g}h".replace(".", "p") if any(intervals) else ""
            base = "time" if self._single else "forecast_period"
            name = f"{base}{known}"
            while name in self._target.sizes:
                name += "_b"
            self._axis_of[intervals] = name
            leads = np.array(self._leads, np.float64)
            begins = leads - np.array(intervals) / 60
            bounds = {"bounds": f"{name}_bnds"} if any(intervals) else {}
            period = {"standard_name": "forecast_period", "units": "hours"}
            if self._single:
                first = self._starts[0].astype(np.int64) / 3600
                valid = {"standard_name": "time", "units": _EPOCH, "calendar": "standard", "axis": "T"}
                self._coordinate(name, (name,), first + leads, "f8", **valid, **bounds)
                self._coordinate(f"forecast_period{known}", (name,), leads, "f8", **period)
                leads, begins = first + leads, first + begins
            else:
                self._coordinate(name, (name,), leads, "f8", **period, **bounds)
            if bounds:
                self._coordinate(f"{name}_bnds", (name, "bnds"), np.stack([begins, leads], 1), "f8")
        return self._axis_of[intervals]

    def _define_cells(self) -> tuple[str, ...]:
        """Define the coordinates of the cells; return their dimensions."""
        grid = self._grid
        north = {"standard_name": "latitude", "units": "degrees_north"}
        east = {"standard_name": "longitude", "units": "degrees_east"}
        if not isinstance(grid, Points):
            self._coordinate("latitude", ("latitude",), grid.latitudes, "f8", **north, axis="Y")
            self._coordinate("longitude", ("longitude",), grid.longitudes, "f8", **east, axis="X")
            return "latitude", "longitude"
        self._coordinate("latitude", ("station",), grid.latitudes, "f8", **north)
        self._coordinate("longitude", ("station",), grid.longitudes, "f8", **east)
        if grid.altitudes:
            self._coordinate("altitude", ("station",), grid.altitudes, "f8", standard_name="altitude", units="m")
        if grid.model_altitudes:
            self._coordinate("model_altitude", ("station",), grid.model_altitudes, "f8", units="m")
        if grid.ids:
            self._target.create(
                "station_id", str, ("station",), {"cf_role": "timeseries_id"}, np.array(grid.ids, object)
            )
        return ("station",)

    def _define(self, new: NewVariable) -> None:
        axis = self._axis(new.intervals)
        variable, known = new.variable, PARAMETERS.get(new.variable.name)
        across = ("number",) if new.products is None else tuple(filter(None, [new.products.axis]))
        dimensions = (axis, *across, *self._cells)
        dimensions = dimensions if self._single else ("forecast_reference_time", *dimensions)
        further = []
        if self._single:
            further = ["forecast_reference_time", axis.replace("time", "forecast_period", 1)]
        if variable.level:
            level = f"pressure_{variable.level}"
            if level not in self._target.names:
                up = {"standard_name": "air_pressure", "units": "hPa", "positive": "down"}
                self._coordinate(level, (), float(variable.level), "f8", **up)
            further.append(level)
        if isinstance(self._grid, Points):
            further += ["latitude", "longitude"]
            further += [name for name in ("altitude", "model_altitude", "station_id") if name in self._target.names]
        attributes: dict[str, Any] = {"units": new.units, "GRIB_shortName": variable.name}
        if known:
            attributes["long_name"] = known.long_name
            if known.standard_names:
                attributes["standard_name"] = known.standard_names.split()[0]
        time = axis if self._single else "time"
        attributes["cell_methods"] = f"{time}: {_METHODS[variable.processing]}"
        attributes |= {"coordinates": " ".join(further)} if further else {}
        attributes |= {LEVEL_ATTRIBUTE: new.level} if new.level else {}
        name = new.name
        if (products := new.products) is not None:
            if products.axis and products.axis not in self._target.names:
                about = products.axis_attributes(attributes)
                self._coordinate(products.axis, across, products.values, "f8", **about)
            coordinates = {"coordinates": attributes["coordinates"]} if further else {}
            attributes, name = products.attributes(attributes) | coordinates, products.name
        self._target.create(name, "f4", dimensions, attributes | dict(new.attributes), cells=len(self._cells))


@contextmanager
def new_forecast_file(
    path: Path,
    grid: Grid,
    starts: np.ndarray,
    leads: Sequence[int],
    numbers: Sequence[int],
    variables: Sequence[NewVariable],
    as_store: bool = False,
) -> Iterator[NewForecastFile]:
    """Yield a new NetCDF file, or Zarr store; it gets its name `path` at the end of the block."""
    if as_store:
        with package("writing Zarr", "train"):
            from data_pipeline.formats.zarr.new_store import NewStore

        if path.exists() and not is_zarr_folder(path):
            raise InputError(f"{path} exists and is no Zarr store; choose another name")
        remove_abandoned_files(path.parent)
        with atomic_path(path) as partial:
            yield NewForecastFile(NewStore(partial, float(FILL)), grid, starts, leads, numbers, variables)
        return
    import netCDF4

    with atomic_path(path) as partial:
        try:
            with library_lock():
                dataset = netCDF4.Dataset(partial, "w", format="NETCDF4")
            try:
                yield NewForecastFile(_NetCDFTarget(dataset), grid, starts, leads, numbers, variables)
            finally:
                with library_lock():
                    dataset.close()
        except RuntimeError as error:
            raise InputError(f"cannot write {path} ({error}); check the space on the device") from None
