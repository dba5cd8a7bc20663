"""The same weather in every format and its variants, in a store and in arrays.

`WRITERS` is a registry: a new format or data source without an entry fails the law of identity.
"""

import json
import shutil
import zipfile
from functools import partial

import icechunk
import numpy as np
import xarray as xr
from virtual_chunks import references_of

from data_pipeline.archive import Archive
from data_pipeline.grid import Grid
from data_pipeline.sources.array_source import ArraySource
from data_pipeline.store import Store
from data_pipeline.task import Task
from data_pipeline.writing import Encoder

GRID = Grid.regular(17, 32)
TASK = Task("toy", ["2t", "t@850"], ["2t"], [24], ["lsm"])
STARTS = np.array(["2020-01-01", "2020-01-03", "2020-01-05"], "M8[ns]")
OUTER = {"ensemble": ("init_time", "lead_time", "number"), "analysis": ("time",), "static": ()}
"""The parts of an archive, and the outer dimensions of their fields."""


def weather(leads=(24,), numbers=(0, 1), levels=(850,), starts=STARTS, surface=("2t",), grid=GRID):
    """Return the three parts as datasets, with the attributes of CF; all values differ.

    There are fields of the variables at the `surface`, of `t` at some levels, and a static `lsm`.
    """
    random = np.random.default_rng(0)
    axes = {
        "init_time": ("init_time", starts, {"standard_name": "forecast_reference_time"}),
        "lead_time": ("lead_time", [*leads], {"standard_name": "forecast_period", "units": "hours"}),
        "number": ("number", [*numbers], {"standard_name": "realization"}),
        "time": ("time", np.unique(starts[:, None] + np.array(leads, "m8[h]")), {"standard_name": "time"}),
        "level": ("level", np.array(levels, float), {"standard_name": "air_pressure", "units": "hPa"}),
        "latitude": ("latitude", np.array(grid.latitudes), {"units": "degrees_north"}),
        "longitude": ("longitude", np.array(grid.longitudes), {"units": "degrees_east"}),
    }
    space, parts = ("latitude", "longitude"), {}
    for part, outer in OUTER.items():
        fields = dict.fromkeys(surface, (*outer, *space)) | {"t": (*outer, "level", *space)}
        fields = {"lsm": space} if part == "static" else fields if levels else {name: fields[name] for name in surface}
        own = {name: axes[name] for name in axes if name in {each for one in fields.values() for each in one}}
        sizes = {name: len(values) for name, (_, values, _) in own.items()}
        units = {"units": "1" if part == "static" else "K"}
        parts[part] = xr.Dataset(
            {
                name: (dims, (280 + 5 * random.standard_normal([sizes[d] for d in dims])).astype("f4"), units)
                for name, dims in fields.items()
            },
            own,
        )
    return parts


WEATHER = weather()
TYPES = {"surface": "surface", "air_pressure": "isobaricInhPa", "model_level_number": "hybrid"}
"""GRIB's types of level by standard name."""


def write_grib(path, part, data, edition=1, **further):
    """Write all fields that have a value, with the local definition that says the member and with `further` keys."""
    local = {"setLocalDefinition": 1, "localDefinitionNumber": 26}
    kind = {"ensemble": {"type": "pf", "stream": "enfo"}}.get(part, {"type": "an"}) | local | further
    if edition == 2:
        kind = ({"productDefinitionTemplateNumber": 1} if part == "ensemble" else {}) | further
    grid = Grid(tuple(data.latitude.values), tuple(data.longitude.values))
    encoder = Encoder(grid, edition=edition, centre="ecmf", **kind)
    messages = []
    for name, array in data.data_vars.items():
        for place in np.ndindex(*array.shape[:-2]):
            at = array[place]
            if at.isnull().all():
                continue
            keys = {"shortName": name, "typeOfLevel": "surface", "dataDate": 20200101}
            if "level" in at.coords:
                keys |= {"typeOfLevel": TYPES[at.level.attrs["standard_name"]], "level": int(at.level)}
            for axis in at.coords.keys() & {"init_time", "time"}:
                keys["dataDate"] = int(str(at[axis].values.astype("M8[D]")).replace("-", ""))
            if part == "ensemble":
                keys |= {"endStep": int(at.lead_time), "perturbationNumber": int(at.number)}
            messages.append(encoder.encode(at.values.astype(float), **keys))
    path.write_bytes(b"".join(messages))


def write_netcdf(path, part, data, **options):
    """Write a file with chunks of one field each."""
    encoding = {}
    if options["format"] == "NETCDF4":
        chunks = {name: (*(1,) * (array.ndim - 2), *array.shape[-2:]) for name, array in data.data_vars.items()}
        encoding = {name: {"chunksizes": sizes, "zlib": True} for name, sizes in chunks.items()}
    data.to_netcdf(path, encoding=encoding, **options)


def write_zarr(path, part, data, shards=False, plain=False, **options):
    """Write a store with chunks of one field each, and shards of all fields of a variable."""
    encoding = {}
    for name, array in data.data_vars.items():
        encoding[name] = {"chunks": (*(1,) * (array.ndim - 2), *array.shape[-2:])}
        encoding[name] |= {"shards": array.shape} if shards else {}
        encoding[name] |= {"compressors": None} if plain else {}
    data.to_zarr(path, encoding=encoding, consolidated=options["zarr_format"] == 2, **options)


def write_zip(path, part, data):
    """Write a store, and put it into a zip file in place of the folder."""
    write_zarr(folder := path.with_name(f"{path.name}.folder"), part, data, zarr_format=2)
    with zipfile.ZipFile(path, "w") as file:
        for each in sorted(folder.rglob("*")):
            file.write(each, each.relative_to(folder))
    shutil.rmtree(folder)


def write_references(path, part, data):
    """Write a store beside the path, and references to its chunks."""
    shutil.rmtree(folder := path.with_name(f"{path.name}.chunks"), ignore_errors=True)
    write_zarr(folder, part, data, zarr_format=2, plain=True)
    path.write_text(json.dumps({"version": 1, "refs": references_of(folder)}))


def write_icechunk(path, part, data):
    """Commit the fields to a repository."""
    icechunk.set_logs_filter("error")
    session = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path))).writable_session("main")
    write_zarr(session.store, part, data, zarr_format=3)
    session.commit(part)


def open_files(folder):
    """Open the archive in a folder."""
    return Archive(*([str(folder / part)] for part in OUTER))


def open_urls(folder):
    """Open the archive in a folder by URLs."""
    return Archive(*([f"file://{folder / part}"] for part in OUTER))


def open_store(folder, task=TASK):
    """Make a store of the archive in a folder, or open it if it was made before."""
    if (folder / "store").exists():
        return Store(folder / "store")
    return Store.write(open_files(folder), task, folder / "store")


def open_arrays(folder):
    """Open the files of a folder by xarray."""
    parts = [xr.open_dataset(folder / part, engine="netcdf4").load() for part in OUTER]
    return ArraySource(parts[0], parts[1], parts[2])


NETCDF_4 = partial(write_netcdf, format="NETCDF4")
WRITERS = {
    "grib": (write_grib, open_files),
    "grib edition 2": (partial(write_grib, edition=2), open_files),
    "netcdf classic": (partial(write_netcdf, format="NETCDF3_64BIT"), open_files),
    "netcdf 4": (NETCDF_4, open_files),
    "zarr 2": (partial(write_zarr, zarr_format=2), open_files),
    "zarr 2 plain": (partial(write_zarr, zarr_format=2, plain=True), open_files),
    "zarr 3": (partial(write_zarr, zarr_format=3), open_files),
    "zarr 3 shards": (partial(write_zarr, zarr_format=3, shards=True), open_files),
    "zarr zip": (write_zip, open_files),
    "zarr references": (write_references, open_files),
    "zarr icechunk": (write_icechunk, open_files),
    "zarr url": (partial(write_zarr, zarr_format=3, plain=True), open_urls),
    "store": (NETCDF_4, open_store),
    "arrays": (NETCDF_4, open_arrays),
}
"""Functions that write a part of an archive, and that open the three parts in a folder."""


def forecasts_of(dataset):
    """Return the start (a date) and the lead time of each sample."""
    return [(str(np.datetime64(int(sample.init_time), "s"))[:10], int(sample.lead_time)) for sample in dataset]


def write(name, folder, **changed):
    """Write all parts, of which some may be `changed`, and return the source."""
    folder.mkdir(exist_ok=True)
    make, open_source = WRITERS[name]
    for part, data in (WEATHER | changed).items():
        make(folder / part, part, data)
    return open_source(folder)
