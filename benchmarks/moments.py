"""Time to read the mean and spread of members from GRIB1, compared with reading all members and with `preadv`.

A sample is one start and lead time: 10 members of 8 variables on 361 x 720 points with 16 bits, 42 MB in the file, and
17 MB as two pseudo-members. The files are in the page cache, starts are in random order, all readers are timed in turn,
and the shortest round of each counts. `members` reads all members; `through_members` also reduces them. `preadv` reads
the bytes of the packed values into an existing array, in one thread.

The rise of memory while one sample is read is measured in a process of its own, without the result. `memory_vs_limit`
compares it with two fields (2 MB) for each thread.

    python -m benchmarks.moments [--json] [--rounds 7] [--starts 6]
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import HALF_DEGREE, command_line, in_process, report, rise_here
from benchmarks.samples import FORECAST_YEAR, SAMPLE_TASK, seconds_per_sample, write_samples
from data_pipeline.archive import Archive
from data_pipeline.common.threads import BUDGET
from data_pipeline.dataset import ForecastDataset
from data_pipeline.protocols import ALL
from data_pipeline.samples.pseudo_members import pseudo_members, read_moments

FIELD_BYTES = 4 * HALF_DEGREE.shape[0] * HALF_DEGREE.shape[1]
FIELDS_PER_THREAD = 2
"""Fields that a thread may hold beside the result."""


def packed_bytes(archive: Archive) -> Callable[[int], None]:
    """Return a function that reads the packed values of a sample's members into an existing array."""
    fields = archive.ensemble_fields(SAMPLE_TASK.inputs, SAMPLE_TASK.lead_times)
    out = np.empty(FIELD_BYTES // 2, np.uint8)
    files = [os.open(path, os.O_RDONLY) for path in fields.reader.paths]

    def read(sample: int) -> None:
        wanted = fields.reader.locations[np.sort(fields.cells[sample, 0].ravel())]
        for file, offset, data in wanted[["file", "offset", "data"]].tolist():
            assert os.preadv(files[file], [out], offset + data) == out.nbytes

    return read


def rise_beyond_result(archive: Archive) -> int:
    """Return the bytes by which reading the moments of a sample raises the memory, beyond the result."""
    fields = archive.ensemble_fields(SAMPLE_TASK.inputs, SAMPLE_TASK.lead_times)
    result = np.ones((2, len(SAMPLE_TASK.inputs), *HALF_DEGREE.shape), np.float32)
    read_moments(fields.reader, fields.cells[0, 0], result[:, :, :1], (slice(0, 1), ALL))  # loads the compiler
    return rise_here(read_moments, fields.reader, fields.cells[0, 0], result)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the data, time all readers, print the ratios."""
    options = command_line(__doc__, rounds=7, starts=6).parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DEEPWEATHER_CACHE"] = f"{folder}/cache"
        archive = write_samples(Path(folder), options.starts)
        members, moments = (
            ForecastDataset(archive, SAMPLE_TASK, [FORECAST_YEAR], moments=only) for only in (False, True)
        )
        expected = pseudo_members(members[0].ensemble.numpy())
        assert np.array_equal(moments[0].ensemble.numpy(), expected)
        readers: dict[str, Callable[[int], object]] = {
            "preadv": packed_bytes(archive),
            "members": members.__getitem__,
            "moments": moments.__getitem__,
            "through_members": lambda k: pseudo_members(members[k].ensemble.numpy()),
        }
        seconds = seconds_per_sample(readers, options.rounds, options.starts)
        rise = in_process(rise_beyond_result, archive)
    limit = FIELDS_PER_THREAD * BUDGET.total * FIELD_BYTES
    print(f"one sample, {options.starts} starts in random order, best of {options.rounds} rounds")
    for name, value in seconds.items():
        print(f"{name:<16} {1e3 * value:7.1f} ms, {1 / value:6.1f} samples/s")
    print(f"memory beyond the result: {rise / FIELD_BYTES:.2f} fields with {BUDGET.total} threads")
    ratios = {
        "moments_vs_members": seconds["members"] / seconds["moments"],
        "moments_vs_through_members": seconds["through_members"] / seconds["moments"],
        "moments_vs_preadv": seconds["moments"] / seconds["preadv"],
        "memory_vs_limit": rise / limit,
    }
    report("moments", ratios, options.json)


if __name__ == "__main__":
    main()
