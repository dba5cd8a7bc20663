"""The model that predicts the time of steps on more ranks, in cases with known answers."""

import pytest

from benchmarks.mesh.network_model import MeasuredStep, NetworkModel


def test_the_fit_recovers_latency_and_time_per_byte():
    network = NetworkModel(latency=2e-4, per_byte=3e-9, cores=2)
    kinds = [((0.5, 0.4), 60, 2_000_000), ((0.05, 0.06), 60, 600_000), ((0.9, 0.9), 30, 100_000)]
    runs = [MeasuredStep(network.predict(MeasuredStep(0, *kind)), *kind) for kind in kinds]
    found = NetworkModel.fit(runs, cores=2)
    assert found.latency == pytest.approx(2e-4)
    assert found.per_byte == pytest.approx(3e-9)


def test_ranks_that_share_a_core_run_in_turn():
    network = NetworkModel(latency=1e-3, per_byte=0, cores=2)
    assert network.predict(MeasuredStep(0, (0.3, 0.5), 100, 0)) == pytest.approx(0.5 + 0.1), (
        "the step waits for the slower tile"
    )
    assert network.predict(MeasuredStep(0, (0.3, 0.5, 0.5, 0.3), 100, 0)) == pytest.approx(2 * (0.4 + 0.1))


def test_latency_and_time_per_byte_are_never_negative():
    found = NetworkModel.fit([MeasuredStep(0.4, (0.5, 0.5), 10, 1000), MeasuredStep(0.1, (0.2, 0.2), 10, 10)], cores=2)
    assert (found.latency, found.per_byte) == (0, 0)
