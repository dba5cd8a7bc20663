"""Tiers return the same samples as their data set, read fewer of them, and stay within their budgets."""

import threading
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.prefetch import tiers as tiers_module
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.disk import SAMPLE_OVERHEAD
from data_pipeline.prefetch.order import SampleOrder, compute_placements
from data_pipeline.prefetch.tiers import PEER_MARGIN, ReadRates, Tiers
from data_pipeline.task import Task


@pytest.fixture(scope="module", autouse=True)
def _rates_are_not_measured():
    """The archive of these tests is in memory: measured rates would always prefer it to disk and peers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers_module, "RECHECK_INTERVAL", 10**9)
        patch.setattr(ReadRates, "measure", lambda self, storage, size, read: read())
        yield


def room(data, samples):
    """Return the bytes for a number of samples."""
    return samples * (data.nbytes + SAMPLE_OVERHEAD)


def folder_bytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*.sample"))


@settings(max_examples=40)
@given(memory=st.integers(0, 12), disk=st.integers(0, 12), order=st.lists(st.integers(0, 9), max_size=40))
def test_samples_equal_those_of_the_data_set(numbered, same, tmp_path_factory, memory, disk, order):
    data, plain = numbered(10), numbered(10)
    folder = tmp_path_factory.mktemp("cache")
    budget = Budget(
        memory_bytes=room(data, memory), disk_bytes=room(data, disk), disk_folder=str(folder) if disk else None
    )
    with Tiers(data, budget) as tiers:
        assert len(tiers) == 10
        for k in order:
            assert same(tiers[k], plain[k])
        assert folder_bytes(folder) <= budget.disk_bytes
        kept = {k for k in order if k < memory + disk}
        assert data.reads == Counter(k for k in order if k not in kept) + Counter(kept)
        assert len(list(folder.rglob("*.sample"))) == len([k for k in kept if k >= memory])


def test_a_sample_larger_than_announced_is_not_cached(numbered):
    data = numbered(4)
    type_of = type(data)

    class Larger(type_of):
        nbytes = 8

    larger = Larger(4, cells=2000)
    with Tiers(larger, Budget(memory_bytes=10**6)) as tiers:
        assert len([tiers[1], tiers[1]]) == larger.reads[1] == 2


def test_the_samples_that_are_read_most_are_cached(numbered):
    data, order = numbered(60), SampleOrder(60, 12, epochs=6, seed=3, ranks=2)
    mine = compute_placements(order, [20, 0])[1]
    with Tiers(data, Budget(memory_bytes=room(data, 20)), order, rank=1) as tiers:
        for indices in order.batch_indices(1):
            for k in indices.tolist():
                tiers[k]
        counts = Counter(int(k) for indices in order.batch_indices(1) for k in indices)
        assert data.reads == {k: 1 if mine.tier[k] == 0 else count for k, count in counts.items()}


def test_threads_that_need_the_same_sample_read_it_once(numbered, same):
    data = numbered(4, seconds=0.2)
    with Tiers(data, Budget(memory_bytes=0)) as tiers:
        found, barrier = [], threading.Barrier(6)

        def want():
            barrier.wait()
            found.append(tiers[3])

        threads = [threading.Thread(target=want) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert data.reads == {3: 1}
        assert all(same(sample, numbered(4)[3]) for sample in found)


def test_a_read_error_is_raised_and_the_sample_is_tried_again(numbered):
    data = numbered(4, broken={2})
    with Tiers(data, Budget()) as tiers:
        for _ in range(2):
            with pytest.raises(OSError, match="sample 2 cannot be read"):
                tiers[2]
        data.broken = set()
        assert int(tiers[2].init_time) == 10_000_000_002


class FakePeers:
    """Peers with given samples, which record the requests."""

    def __init__(self, samples):
        self.samples, self.asked, self.closed = samples, [], False

    def serve(self, lookup):
        self.lookup = lookup

    def fetch(self, rank, index):
        self.asked.append((rank, index))
        pieces = self.samples.get((rank, index))
        return bytearray(b"".join(pieces)) if pieces is not None else None

    def close(self):
        self.closed = True


def test_a_peer_is_asked_only_for_samples_that_it_probably_caches(numbered, same):
    data, order = numbered(240), SampleOrder(240, 24, epochs=4, seed=1, ranks=3)
    everyone = compute_placements(order, [80, 0])
    theirs = {}
    budget = Budget(memory_bytes=room(data, 80))
    for rank in (1, 2):
        other = Tiers(numbered(240), budget, order, rank=rank, peers=FakePeers({}))
        while other.fill_one():
            pass
        theirs |= {(rank, k): other.cached_bytes(k) for k in range(240)}
    peers = FakePeers(theirs)
    with Tiers(data, budget, order, rank=0, peers=peers) as tiers:
        remote = [k for k in range(240) if everyone[0].tier[k] < 0 and everyone[1].tier[k] == 0]
        assert all(same(tiers[k], numbered(240)[k]) for k in remote)
        assert not peers.asked  # this rank caches nothing yet, so the peers may not either
        while tiers.cached_count < PEER_MARGIN + 30:
            assert tiers.fill_one()
        for k in remote:
            tiers[k]
        assert {k for k in remote if everyone[1].position[k] <= 30} <= {k for _, k in peers.asked}
        assert all(everyone[rank].position[k] <= 30 for rank, k in peers.asked)
        while tiers.fill_one():
            pass
        peers.asked.clear()
        data.reads.clear()
        assert all(same(tiers[k], numbered(240)[k]) for k in remote)
        assert not data.reads
        assert sorted(k for _, k in peers.asked) == remote
        assert all(everyone[rank].tier[k] == 0 for rank, k in peers.asked)
        assert {rank for rank, _ in peers.asked} == {1, 2}
    assert peers.closed


@pytest.mark.parametrize("answer", [None, [b"noise"], [b""]])
def test_after_a_useless_response_the_archive_is_read(numbered, same, answer):
    data, order = numbered(100), SampleOrder(100, 10, epochs=4, seed=1, ranks=2)
    remote = [k for k in range(100) if compute_placements(order, [30, 0])[0].tier[k] < 0]
    peers = FakePeers({(1, k): answer for k in range(100)} if answer else {})
    with Tiers(data, Budget(memory_bytes=room(data, 30)), order, rank=0, peers=peers) as tiers:
        while tiers.fill_one():
            pass
        data.reads.clear()
        assert all(same(tiers[k], numbered(100)[k]) for k in remote)
        assert peers.asked
        assert data.reads == dict.fromkeys(remote, 1)


def test_rows_come_from_memory_if_the_sample_is_cached_there(toy):
    task, grid = Task("toy", ["2t"], ["2t"], [24]), Grid.regular(5, 8)
    data = toy(task, grid, 6)
    reads = Counter()
    plain = type(data).__getitem__

    class Counted(type(data)):
        def __getitem__(self, index):
            reads[index] += 1
            return plain(self, index)

    data.__class__ = Counted
    with Tiers(data, Budget(memory_bytes=room(data, 2))) as tiers:
        for k in range(6):
            tiers[k]
        reads.clear()
        found = list(batches(tiers.band(slice(1, 4)), 4))
        assert reads == Counter({2: 1, 3: 1, 4: 1, 5: 1})
        assert [len(batch.target) for batch in found] == [4, 2]
        for k, sample in enumerate(data.samples):
            assert torch.equal(found[k // 4].target[k % 4], sample.target[:, 1:4])
            assert torch.equal(found[k // 4].static[k % 4], sample.static[:, 1:4])
        assert tiers.times()[0].tolist() == [int(sample.init_time) for sample in data.samples]
