"""One rank of a run whose ranks exchange samples, as a process: `rank.py RANK RANKS FOLDER [stay]`."""

import json
import runpy
import sys
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import FileStore

from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.disk import SAMPLE_OVERHEAD
from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.prefetch.order import SampleOrder
from data_pipeline.prefetch.socket_peers import SocketPeers
from data_pipeline.prefetch.tiers import Tiers, run_key

toys = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
Numbered, equal = toys["Numbered"], toys["equal"]
COUNT, CACHED = 120, 60
SECONDS = 0.05
"""Time to read a sample, far above that of a message on a busy machine, or ranks would prefer the archive."""


def open_tiers(rank, ranks, folder, **options):
    """Return data, order, tiers and the store through which the ranks exchange addresses."""
    data, order = Numbered(COUNT, SECONDS), SampleOrder(COUNT, 12, epochs=3, seed=1, ranks=ranks)
    store = FileStore(str(folder / "store"), ranks)
    store.set_timeout(timedelta(seconds=60))
    peers = SocketPeers.from_store(rank, ranks, store, run_key(data, order), "127.0.0.1", **options)
    budget = Budget(memory_bytes=CACHED * (data.nbytes + SAMPLE_OVERHEAD))
    return data, order, Tiers(data, budget, order, rank=rank, peers=peers), store


def main(rank, ranks, folder, stay=None):
    data, order, tiers, store = open_tiers(rank, ranks, folder)
    while tiers.fill_one():
        pass
    store.set(f"filled {rank}", "yes")
    if stay:
        (folder / f"{rank}.ready").touch()
        time.sleep(600)
    store.wait([f"filled {other}" for other in range(ranks)])
    before, right = sum(data.reads.values()), 0
    with Prefetcher(tiers, order, rank) as loader:
        for epoch in range(order.epochs):
            loader.set_epoch(epoch)
            for batch, indices in zip(loader, order.batch_indices(rank, epoch), strict=False):
                right += (batch.init_time - 10_000_000_000).tolist() == indices.tolist()
    sample = all(equal(tiers[k], Numbered(COUNT)[k]) for k in range(0, COUNT, 7))
    found = {"filled": before, "read": sum(data.reads.values()) - before, "right": right, "same": sample}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    store.set(f"done {rank}", "yes")
    store.wait([f"done {other}" for other in range(ranks)])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
