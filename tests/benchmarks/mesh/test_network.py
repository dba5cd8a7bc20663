"""The model by which steps of more ranks are foretold, against cases where the answer is known."""

import pytest

from benchmarks.mesh.network import Network, Run


def test_it_finds_the_network_that_the_steps_were_made_with():
    network = Network(latency=2e-4, per_byte=3e-9, cores=2)
    kinds = [((0.5, 0.4), 60, 2_000_000), ((0.05, 0.06), 60, 600_000), ((0.9, 0.9), 30, 100_000)]
    runs = [Run(network.predict(Run(0, *kind)), *kind) for kind in kinds]
    found = Network.fitted(runs, cores=2)
    assert found.latency == pytest.approx(2e-4)
    assert found.per_byte == pytest.approx(3e-9)


def test_ranks_that_share_a_core_take_turns():
    network = Network(latency=1e-3, per_byte=0, cores=2)
    assert network.predict(Run(0, (0.3, 0.5), 100, 0)) == pytest.approx(0.5 + 0.1), "the slower one is waited for"
    assert network.predict(Run(0, (0.3, 0.5, 0.5, 0.3), 100, 0)) == pytest.approx(2 * (0.4 + 0.1))


def test_a_network_cannot_be_faster_than_none():
    found = Network.fitted([Run(0.4, (0.5, 0.5), 10, 1000), Run(0.1, (0.2, 0.2), 10, 10)], cores=2)
    assert (found.latency, found.per_byte) == (0, 0)
