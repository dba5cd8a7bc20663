"""A data set behind tiers is the same data set, read less often, within its budgets."""

import threading
from collections import Counter

import pytest
import torch
from hypothesis import given
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
def _sources_as_fast_as_expected():
    """The archive of these tests is in memory, faster than any disk or peer, which measurements would find out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers_module, "RECHECK_INTERVAL", 10**9)
        patch.setattr(ReadRates, "measure", lambda self, source, size, read: read())
        yield


def room(data, samples):
    """Bytes for so many samples."""
    return samples * (data.nbytes + SAMPLE_OVERHEAD)


def folder_bytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*.sample"))


@given(memory=st.integers(0, 12), disk=st.integers(0, 12), order=st.lists(st.integers(0, 9), max_size=40))
def test_it_is_the_same_data_set(numbered, same, tmp_path_factory, memory, disk, order):
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


def test_a_sample_of_unexpected_size_is_not_kept_in_memory(numbered):
    data = numbered(4)
    type_of = type(data)

    class Larger(type_of):
        nbytes = 8

    larger = Larger(4, cells=2000)
    with Tiers(larger, Budget(memory_bytes=10**6)) as tiers:
        assert len([tiers[1], tiers[1]]) == larger.reads[1] == 2


def test_disk_samples_are_found_after_a_restart_and_damage_is_mended(numbered, same, tmp_path):
    data = numbered(8)
    budget = Budget(memory_bytes=0, disk_bytes=room(data, 6), disk_folder=str(tmp_path))
    with Tiers(data, budget) as tiers:
        for k in range(8):
            tiers[k]
    path = tmp_path / "samples-0000/00000002.sample"
    content = bytearray(path.read_bytes())
    content[-70] ^= 255
    path.write_bytes(content)
    data.reads.clear()
    with Tiers(data, budget) as tiers:
        assert all(same(tiers[k], numbered(8)[k]) for k in [*range(8), 2])
    assert data.reads == {2: 1, 6: 1, 7: 1}
    with Tiers(numbered(8, fingerprint="other"), budget) as tiers:
        assert not list(tmp_path.rglob("*.sample"))


def test_it_keeps_what_the_stream_reads_most(numbered):
    data, stream = numbered(60), SampleOrder(60, 12, epochs=6, seed=3, ranks=2)
    mine = compute_placements(stream, [20, 0])[1]
    with Tiers(data, Budget(memory_bytes=room(data, 20)), stream, rank=1) as tiers:
        for block in stream.batch_indices(1):
            for k in block.tolist():
                tiers[k]
        counts = Counter(int(k) for block in stream.batch_indices(1) for k in block)
        assert data.reads == {k: 1 if mine.tier[k] == 0 else count for k, count in counts.items()}


def test_filling_goes_in_the_order_of_first_reads(numbered):
    data, stream = numbered(30), SampleOrder(30, 5, epochs=2, seed=3)
    with Tiers(data, Budget(memory_bytes=room(data, 12)), stream) as tiers:
        first = [int(k) for block in stream.batch_indices() for k in block][:12]
        tiers[first[1]]
        assert tiers.fill_one()
        assert data.reads == {first[0]: 1, first[1]: 1}
        while tiers.fill_one():
            pass
        assert data.reads == dict.fromkeys(first, 1)
        assert list(data.reads)[1:] == [first[0], *first[2:]]


def test_threads_that_want_the_same_sample_read_it_once(numbered, same):
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


def test_what_goes_wrong_while_reading_is_raised_to_all_and_tried_again(numbered):
    data = numbered(4, broken={2})
    with Tiers(data, Budget()) as tiers:
        for _ in range(2):
            with pytest.raises(OSError, match="sample 2 cannot be read"):
                tiers[2]
        data.broken = set()
        assert int(tiers[2].init_time) == 10_000_000_002


class Others:
    """Peers that have what they were given, and remember what they were asked."""

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


def test_a_peer_is_asked_for_what_it_should_have_by_now(numbered, same):
    data, stream = numbered(240), SampleOrder(240, 24, epochs=4, seed=1, ranks=3)
    everyone = compute_placements(stream, [80, 0])
    theirs = {}
    budget = Budget(memory_bytes=room(data, 80))
    for rank in (1, 2):
        other = Tiers(numbered(240), budget, stream, rank=rank, peers=Others({}))
        while other.fill_one():
            pass
        theirs |= {(rank, k): other.cached_bytes(k) for k in range(240)}
    others = Others(theirs)
    with Tiers(data, budget, stream, rank=0, peers=others) as tiers:
        abroad = [k for k in range(240) if everyone[0].tier[k] < 0 and everyone[1].tier[k] == 0]
        assert all(same(tiers[k], numbered(240)[k]) for k in abroad)
        assert not others.asked  # this rank has nothing yet, so they need not either
        while tiers.cached_count < PEER_MARGIN + 30:
            assert tiers.fill_one()
        for k in abroad:
            tiers[k]
        assert {k for k in abroad if everyone[1].position[k] <= 30} <= {k for _, k in others.asked}
        assert all(everyone[rank].position[k] <= 30 for rank, k in others.asked)
        while tiers.fill_one():
            pass
        others.asked.clear()
        data.reads.clear()
        assert all(same(tiers[k], numbered(240)[k]) for k in abroad)
        assert not data.reads
        assert sorted(k for _, k in others.asked) == abroad
        assert all(everyone[rank].tier[k] == 0 for rank, k in others.asked)
        assert {rank for rank, _ in others.asked} == {1, 2}
    assert others.closed


@pytest.mark.parametrize("answer", [None, [b"rubbish"], [b""]])
def test_a_peer_that_has_nothing_or_rubbish_costs_a_read_of_the_archive(numbered, same, answer):
    data, stream = numbered(100), SampleOrder(100, 10, epochs=4, seed=1, ranks=2)
    elsewhere = [k for k in range(100) if compute_placements(stream, [30, 0])[0].tier[k] < 0]
    others = Others({(1, k): answer for k in range(100)} if answer else {})
    with Tiers(data, Budget(memory_bytes=room(data, 30)), stream, rank=0, peers=others) as tiers:
        while tiers.fill_one():
            pass
        data.reads.clear()
        assert all(same(tiers[k], numbered(100)[k]) for k in elsewhere)
        assert others.asked
        assert data.reads == dict.fromkeys(elsewhere, 1)


def test_lending_gives_what_is_kept_and_nothing_else(numbered, tmp_path):
    data = numbered(9)
    budget = Budget(memory_bytes=room(data, 2), disk_bytes=room(data, 2), disk_folder=str(tmp_path))
    with Tiers(data, budget) as tiers:
        for k in range(9):
            tiers[k]
        lent = [tiers.cached_bytes(k) for k in range(9)]
        assert [pieces is not None for pieces in lent] == [k < 4 for k in range(9)]
        assert [len(b"".join(pieces)) for pieces in lent[:4]] == [len(b"".join(lent[0]))] * 4
        assert tiers.cached_bytes(10**6) is None


def test_a_pass_in_order_reads_ahead_and_fills_the_tiers(numbered):
    data = numbered(20)
    with Tiers(data, Budget(memory_bytes=room(data, 8)), SampleOrder(20, 4, epochs=3, seed=1)) as tiers:
        for _ in range(2):
            found = [(batch.init_time - 10_000_000_000).tolist() for batch in batches(tiers, 6)]
            assert found == [[*range(k, min(k + 6, 20))] for k in range(0, 20, 6)]
        assert sorted(data.reads.values()) == [1] * 8 + [2] * 12


def test_some_rows_come_from_memory_where_the_whole_sample_is(toy):
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
