"""The simulator: its closed forms against loops and real streams, its policies against what must be so."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchmarks.prefetch_simulator import simulate
from benchmarks.prefetch_simulator.policies import DISK, MEMORY, POLICIES, REMOTE_MEMORY, SHARED, Case
from benchmarks.prefetch_simulator.simulate import REGIMES, Cluster, count_often_read, often_read, run_time
from data_pipeline.prefetch.order import SampleOrder

CASE = Case(samples=4_000, size=100.0, epochs=5, batch_size=64)
FAST = Cluster(compute=1_000)


def test_the_check_figure_of_the_paper():
    assert often_read(1_281_167, 16, 90, 0.8) == pytest.approx(31_635, abs=0.5)


@pytest.mark.parametrize(("workers", "epochs", "excess"), [(16, 90, 0.8), (4, 10, 0.5), (2, 7, 0.0)])
def test_the_formula_is_the_tail_of_a_binomial_and_real_streams_follow_it(workers, epochs, excess):
    count = 40_000
    expected = often_read(count, workers, epochs, excess)
    least = int(np.ceil((1 + excess) * epochs / workers))
    assert expected == pytest.approx(count * stats.binom(epochs, 1 / workers).sf(least - 1), rel=1e-9)
    # Workers share the samples, so their counts lean the other way: the mean over all errs less than independent draws.
    error = np.sqrt(expected / workers)
    assert count_often_read(SampleOrder(count, 64 * workers, epochs, ranks=workers), excess) == pytest.approx(
        expected, abs=5 * error
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_time_follows_the_recursion_of_the_model(policy):
    """The same sum, one sample at a time."""
    epochs = POLICIES[policy](CASE)
    available = end = 0.0
    for number, sources in enumerate(epochs):
        fetch = FAST.fetch(CASE.workers * np.mean(sources == SHARED))
        for source in sources:
            available += CASE.size * (fetch[source] + FAST.write) / FAST.staging_threads
            if policy == "ParallelStaging" and number == 0:
                end = available
            else:
                end = max(available, end) + CASE.size / FAST.compute
    assert run_time(policy, CASE, FAST) == pytest.approx(end, rel=1e-9)


@pytest.mark.parametrize("size", REGIMES.values(), ids=REGIMES)
@pytest.mark.parametrize("compute", [64, 1_000])
def test_nothing_beats_no_reading_and_nopfs_beats_reading_all(size, compute):
    cluster, case = Cluster(compute=compute), replace(CASE, size=size / CASE.samples)
    least = run_time("Perfect", case, cluster)
    times = {policy: run_time(policy, case, cluster) for policy in ("Naive", *POLICIES)}
    assert all(time is None or time >= least for time in times.values())
    assert times["NoPFS"] <= times["StagingBuffer"] <= times["Naive"]
    assert times["NoPFS"] <= times["DeepIO"] * 1.02
    assert (times["LBANN"] is None) == (size > case.workers * case.memory)


def test_sources_are_what_the_policies_say():
    small = replace(CASE, size=1.0)  # all fits into one memory
    first, *later = list(POLICIES["NoPFS"](small))
    assert set(first) == {SHARED}
    assert all(set(sources) <= {MEMORY, REMOTE_MEMORY} for sources in later)
    assert all(set(sources) == {MEMORY} for sources in list(POLICIES["LocalityAware"](small))[1:])
    assert set(np.concatenate(list(POLICIES["StagingBuffer"](small)))) == {SHARED}
    tight = replace(CASE, memory=50_000.0, disk=60_000.0)  # 500 + 600 of 4000 samples
    shared, *own = list(POLICIES["ParallelStaging"](tight))
    assert len(shared) == 1_000
    assert all(set(sources) == {MEMORY, DISK} for sources in own)
    kept = [np.mean(sources != SHARED) for sources in POLICIES["DeepIO"](tight)]
    assert kept[0] == 0
    assert kept[1:] == pytest.approx([0.5] * 4, abs=0.06)


def test_it_prints_a_table(capsys, monkeypatch):
    monkeypatch.setattr(simulate, "count_often_read", lambda stream, excess: 0.0)
    simulate.main()
    printed = capsys.readouterr().out
    assert printed.count("NoPFS") == 2
    assert "refused" in printed
    assert "31,635" in printed
