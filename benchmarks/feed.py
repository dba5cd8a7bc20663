"""Share of the training time in which the training waits for data, with steps of 15 ms.

A sample is the mean and spread of 10 members of 11 variables on 361 x 720 points with its truth, 24 MB; a step takes
one sample and then sleeps for 15 ms, as long as a GPU computes. No sample is cached, and all files are in the page
cache. Samples come from a store of moments, and from the GRIB1 files. `wait_share` is the share with the store.

    python -m benchmarks.feed [--json] [--steps 200] [--starts 4]
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.common import command_line, report
from benchmarks.samples import FORECAST_YEAR, SAMPLE_TASK, write_samples
from data_pipeline.dataset import ForecastDataset
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.prefetch.order import SampleOrder
from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.protocols import DataSource
from data_pipeline.sample import Sample
from data_pipeline.store import Store
from data_pipeline.task import Variable

STEP_SECONDS = 0.015
FEED_TASK = replace(
    SAMPLE_TASK, name="feed", inputs=(*SAMPLE_TASK.inputs, *(Variable(name, 500) for name in ("t", "u", "v")))
)


class Repeated(Dataset[Sample]):
    """The samples of a data set, repeated until there are `count`; every access reads its sample again."""

    def __init__(self, samples: ForecastDataset, count: int) -> None:
        self._samples, self._count = samples, count
        self.static: Tensor = samples.static
        self.fingerprint, self.nbytes = samples.fingerprint, samples.nbytes

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Sample:
        return self._samples[index % len(self._samples)]


def train(source: DataSource, steps: int) -> tuple[float, float]:
    """Take the steps; return the share of the time spent waiting, and the processor's seconds for each sample."""
    samples = Repeated(ForecastDataset(source, FEED_TASK, [FORECAST_YEAR], moments=True), steps)
    order = SampleOrder(steps, 1)
    with Tiers(samples, Budget(memory_bytes=0), order) as tiers, Prefetcher(tiers, order) as batches:
        iterator = iter(batches)
        for _ in range(5):  # the start of threads, and the compiler
            next(iterator)
        began, before, waited = time.perf_counter(), time.process_time(), batches.waited
        for _ in iterator:
            time.sleep(STEP_SECONDS)
        share = (batches.waited - waited) / (time.perf_counter() - began)
        return share, (time.process_time() - before) / (steps - 5)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the data, train from the store and from GRIB, print the shares."""
    options = command_line(__doc__, steps=200, starts=4).parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DEEPWEATHER_CACHE"] = f"{folder}/cache"
        archive = write_samples(Path(folder), options.starts, FEED_TASK)
        store = Store.write(archive, FEED_TASK, f"{folder}/store", moments=True)
        shares = {}
        for name, source in (("store", store), ("grib1", archive)):
            shares[name], seconds = train(source, options.steps)
            print(f"{name:<6} waits {shares[name]:6.1%} of the time; {1e3 * seconds:.1f} ms of processor for each step")
    report("feed", {"wait_share": shares["store"], "wait_share_grib1": shares["grib1"]}, options.json)


if __name__ == "__main__":
    main()
