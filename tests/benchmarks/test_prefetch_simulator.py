"""The simulator: closed forms agree with loops and real orders, and policies have known properties."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchmarks.prefetch_simulator.policies import OWN_DISK, OWN_MEMORY, POLICIES, REMOTE_MEMORY, SHARED, Workload
from benchmarks.prefetch_simulator.simulate import (
    ClusterRates,
    count_often_read,
    expected_often_read,
    run_time,
)
from data_pipeline.prefetch.order import SampleOrder

WORKLOAD = Workload(samples=4_000, size=100.0, epochs=5, batch_size=64)
FAST = ClusterRates(compute=1_000)


@pytest.mark.parametrize(("workers", "epochs", "excess"), [(16, 90, 0.8), (2, 7, 0.0)])
def test_the_expected_number_is_a_binomial_tail_and_agrees_with_real_orders(workers, epochs, excess):
    count = 40_000
    expected = expected_often_read(count, workers, epochs, excess)
    minimum = int(np.ceil((1 + excess) * epochs / workers))
    assert expected == pytest.approx(count * stats.binom(epochs, 1 / workers).sf(minimum - 1), rel=1e-9)
    # Counts of workers are negatively correlated, so their mean varies less than that of independent draws.
    error = np.sqrt(expected / workers)
    assert count_often_read(SampleOrder(count, 64 * workers, epochs, ranks=workers), excess) == pytest.approx(
        expected, abs=5 * error
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_time_follows_the_recursion_of_the_model(policy):
    """The expected time is added up sample by sample."""
    epochs = POLICIES[policy](WORKLOAD)
    available = end = 0.0
    for number, storages in enumerate(epochs):
        fetch = FAST.fetch(WORKLOAD.workers * np.mean(storages == SHARED))
        for storage in storages:
            available += WORKLOAD.size * (fetch[storage] + FAST.write) / FAST.staging_threads
            if policy == "ParallelStaging" and number == 0:
                end = available
            else:
                end = max(available, end) + WORKLOAD.size / FAST.compute
    assert run_time(policy, WORKLOAD, FAST) == pytest.approx(end, rel=1e-9)


def test_storages_match_the_definition_of_each_policy():
    small = replace(WORKLOAD, size=1.0)  # all samples fit into one memory
    first, *later = list(POLICIES["NoPFS"](small))
    assert set(first) == {SHARED}
    assert all(set(storages) <= {OWN_MEMORY, REMOTE_MEMORY} for storages in later)
    assert all(set(storages) == {OWN_MEMORY} for storages in list(POLICIES["LocalityAware"](small))[1:])
    assert set(np.concatenate(list(POLICIES["StagingBuffer"](small)))) == {SHARED}
    tight = replace(WORKLOAD, memory=50_000.0, disk=60_000.0)  # 500 + 600 of 4000 samples
    shared, *own = list(POLICIES["ParallelStaging"](tight))
    assert len(shared) == 1_000
    assert all(set(storages) == {OWN_MEMORY, OWN_DISK} for storages in own)
    kept = [np.mean(storages != SHARED) for storages in POLICIES["DeepIO"](tight)]
    assert kept[0] == 0
    assert kept[1:] == pytest.approx([0.5] * 4, abs=0.06)
