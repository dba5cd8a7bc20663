"""Measured rates and the choice of the fastest storage, with a simulated clock."""

import pytest

from data_pipeline.prefetch import tiers
from data_pipeline.prefetch.tiers import EXPECTED_RATES, RECHECK_INTERVAL, ReadRates


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(tiers.time, "perf_counter", lambda: now[0])
    return now


def read(rates, clock, storage, seconds, size=1_000_000):
    def take():
        clock[0] += seconds
        return "sample"

    return rates.measure(storage, size, take)


def test_the_mean_of_successful_measurements_replaces_the_expected_rates(clock):
    rates = ReadRates()
    assert rates.choose(["archive", "peer", "disk"]) == "disk"
    assert rates.choose(["archive", "peer"]) == "peer"
    assert read(rates, clock, "disk", seconds=1.0) == "sample"
    assert rates.rate("disk") == pytest.approx(1e6)
    assert rates.choose(["archive", "disk"]) == "archive"
    read(rates, clock, "archive", seconds=4.0)
    assert rates.choose(["archive", "disk"]) == "disk"
    assert rates.measure("peer", 10, lambda: None) is None
    assert rates.rate("peer") == EXPECTED_RATES["peer"]
    for seconds in (1.0, 2.0, 4.0):
        read(rates, clock, "peer", seconds)
    assert rates.rate("peer") == pytest.approx(0.9 * (0.9 * 1e6 + 0.1 * 5e5) + 0.1 * 2.5e5)


def test_a_storage_that_was_passed_over_is_tried_again(clock):
    rates = ReadRates()
    read(rates, clock, "archive", seconds=100.0)
    chosen = [rates.choose(["archive", "disk"]) for _ in range(3 * RECHECK_INTERVAL)]
    assert chosen.count("archive") == 3
    read(rates, clock, "archive", seconds=1e-6)
    for _ in range(100):
        read(rates, clock, "archive", seconds=1e-6)
    assert rates.choose(["archive", "disk"]) == "archive"
