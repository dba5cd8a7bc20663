"""Time to read samples through references and from Icechunk, compared with Zarr stores of the same chunks.

The stores are those of `benchmarks.zarr_read`, in format 2 for references, which point to the chunk files, and in
format 3 for Icechunk, with the same compression. A sample is all of one start and lead time, 80 fields of 361 x 720
points. The files are in the page cache, all readers are timed in turn, and the shortest time of each counts.
`references_vs_zarr` and `icechunk_vs_zarr` are the largest ratios of times; the bar is 1.5.

    python -m benchmarks.virtual_read [--json] [--rounds 5] [--threads 2]
"""

from __future__ import annotations

import base64
import json
import tempfile
import warnings
from pathlib import Path

import icechunk
import numpy as np
import xarray as xr

from benchmarks.common import best_times, command_line, filling, report
from benchmarks.zarr_read import COMPRESSIONS, LEADS, MEGABYTES, NAMES, SAMPLE_SHAPE, VARIABLES, write_stores
from data_pipeline.common.threads import BUDGET

BAR = 1.5


def write_references(store: Path, path: Path) -> Path:
    """Write references to the chunk files of a store of format 2; all other files are inline."""
    refs: dict[str, object] = {}
    for file in (file for file in store.rglob("*") if file.is_file() and file.name != ".zmetadata"):
        key, content = str(file.relative_to(store)), file.read_bytes()
        if file.parent.name in NAMES and not file.name.startswith("."):
            refs[key] = [str(file), 0, len(content)]
        else:
            inline = "base64:" + base64.b64encode(content).decode()
            refs[key] = content.decode() if file.name.startswith(".") else inline
    path.write_text(json.dumps({"version": 1, "refs": refs}))
    return path


def write_format_3(dataset: xr.Dataset, folder: Path, compression: str) -> tuple[Path, Path]:
    """Write a data set to a Zarr store of format 3 and to an Icechunk repository, in the same chunks."""
    settings = COMPRESSIONS[compression]
    named = {key: value for key, value in (settings or {}).items() if key != "id"}
    if "shuffle" in named:
        named["shuffle"] = "shuffle"
    codec = [{"name": compression, "configuration": named}] if settings else None
    encoding = {name: {"chunks": (1, 1, *dataset[name].shape[2:]), "compressors": codec} for name in NAMES}
    zarr_path, repository_path = folder / f"{compression}-3.zarr", folder / f"{compression}.icechunk"
    dataset.to_zarr(zarr_path, zarr_format=3, encoding=encoding, consolidated=False)
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(repository_path)))
    session = repository.writable_session("main")
    dataset.to_zarr(session.store, zarr_format=3, encoding=encoding, consolidated=False)
    session.commit("benchmark")
    return zarr_path, repository_path


def main() -> None:
    """Write the stores, read them in all forms, print the ratios."""
    arguments = command_line(__doc__, rounds=5, threads=2).parse_args()
    warnings.simplefilter("ignore")
    BUDGET.limit(arguments.threads)
    out = np.zeros((len(LEADS), *SAMPLE_SHAPE), np.float32)
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_stores(folder)
        for compression in COMPRESSIONS:
            store = folder / f"{compression}.zarr"
            dataset = xr.open_zarr(store, decode_timedelta=True).load().drop_encoding()
            references = write_references(store, folder / f"{compression}.json")
            store_3, repository = write_format_3(dataset, folder, compression)
            pairs = {"references": (references, store), "icechunk": (repository, store_3)}
            for kind, pair in pairs.items():
                virtual, plain = (filling(path, VARIABLES, LEADS, out) for path in pair)
                readers = {"virtual": virtual, "zarr": plain}
                readers["zarr"]()
                expected = out.copy()
                readers["virtual"]()
                np.testing.assert_array_equal(out, expected)
                times = best_times(readers, arguments.rounds)
                for reader, seconds in times.items():
                    label = kind if reader == "virtual" else f"zarr for {kind}"
                    print(f"{compression} {label:<20} {seconds:7.3f} s {MEGABYTES / seconds:8.0f} MB/s of float32")
                ratios[f"{compression}_{kind}_vs_zarr"] = times["virtual"] / times["zarr"]
    for kind in ("references", "icechunk"):
        ratios[f"{kind}_vs_zarr"] = max(ratio for key, ratio in ratios.items() if key.endswith(f"{kind}_vs_zarr"))
        print(f"{kind}: {ratios[f'{kind}_vs_zarr']:.2f} times Zarr's time, the bar is {BAR}")
    report("virtual_read", ratios, arguments.json)


if __name__ == "__main__":
    main()
