"""One reader of another project: the seconds to read a file or a store once, as JSON.

`benchmarks.peers` runs this file with the Python of an environment that has the readers, so it imports nothing of this
project. The first reading makes the reader's index, if it has one, and is not timed. The JSON also has the package's
version and the mean of all values that were read.

    python benchmarks/peer_readers.py cfgrib fields.grib2 --rounds 3
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def read_cfgrib(path: Path) -> np.ndarray:
    """Read all fields of a GRIB file into arrays of xarray."""
    import xarray as xr

    dataset = xr.open_dataset(path, engine="cfgrib", decode_timedelta=True)
    return np.stack([dataset[name].values for name in dataset.data_vars])


def read_earthkit(path: Path) -> np.ndarray:
    """Read all fields of a GRIB file into one array."""
    import earthkit.data

    return earthkit.data.from_source("file", str(path)).to_fieldlist().to_numpy(dtype="float32")


def read_gribberish(path: Path) -> np.ndarray:
    """Decode all messages of a GRIB file in the memory of the process."""
    import gribberish

    data = path.read_bytes()
    messages = gribberish.parse_grib_mapping(data)
    return np.stack([gribberish.parse_grib_array(data, offset) for _, offset, _ in messages.values()])


def read_zarr(path: Path) -> float:
    """Read one sample after the other with zarr; return the mean."""
    import zarr

    array = zarr.open_array(path / "ensemble", mode="r")
    return float(np.mean([array[index][0, 0].mean(dtype=np.float64) for index in range(array.shape[0])]))


def read_xbatcher(path: Path) -> float:
    """Read one sample after the other with xbatcher; return the mean."""
    import xarray as xr
    import xbatcher

    dataset = xr.open_zarr(path, chunks=None, consolidated=False)
    sizes = {name: 1 if name == "start" else size for name, size in dataset["ensemble"].sizes.items()}
    batches = xbatcher.BatchGenerator(dataset["ensemble"], sizes)
    return float(np.mean([batch.values[0, 0, 0].mean(dtype=np.float64) for batch in batches]))


READERS: dict[str, tuple[str, Callable[[Path], np.ndarray | float]]] = {
    "cfgrib": ("cfgrib", read_cfgrib),
    "earthkit-data": ("earthkit-data", read_earthkit),
    "gribberish": ("gribberish", read_gribberish),
    "zarr": ("zarr", read_zarr),
    "xbatcher": ("xbatcher", read_xbatcher),
}
"""Package and function of each reader."""


def main() -> None:
    """Time one reader; print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="readings that are timed; the shortest counts")
    options = parser.parse_args()
    package, read = READERS[options.reader]
    mean, seconds = float(np.mean(read(options.path), dtype=np.float64)), []
    for _ in range(options.rounds):
        began = time.perf_counter()
        read(options.path)
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"seconds": min(seconds), "mean": mean, "version": importlib.metadata.version(package)}))


if __name__ == "__main__":
    main()
