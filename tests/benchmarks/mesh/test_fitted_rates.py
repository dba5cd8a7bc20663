"""Rates of a machine, fitted to steps whose times are known."""

import math

import pytest

from benchmarks.mesh.fitted_rates import fit_rates
from training.step.mesh_choice import MachineRates, MeshEstimate

COUNTS = [(5e10, 900, 0, 0), (1e9, 900, 0, 0), (2.5e10, 1100, 60, 2_000_000), (5e8, 1100, 60, 600_000),
          (2.5e10, 1400, 90, 40_000_000)]  # fmt: skip
"""Operations, operators, messages and bytes of a step on one or two ranks."""


def estimates(rates):
    return [MeshEstimate((1, 1, 1, 1), *counts, rates) for counts in COUNTS]


def seconds_by_hand(operations, operators, messages, sent):
    return operations / 4e10 + operators * 1e-5 + messages * 5e-4 + sent / 8e7


def test_the_fit_recovers_the_rates():
    found = fit_rates(estimates(MachineRates(1.0, 1.0, 1.0, 1.0)), [seconds_by_hand(*counts) for counts in COUNTS])
    assert (found.operations, found.launch) == (pytest.approx(4e10), pytest.approx(1e-5))
    assert (found.latency, found.bandwidth) == (pytest.approx(5e-4), pytest.approx(8e7))
    assert [each.seconds for each in estimates(found)] == pytest.approx([seconds_by_hand(*c) for c in COUNTS])


def test_rates_are_never_negative():
    """Two ranks that are faster than their operations allow get free messages."""
    times = [operations / 4e10 * (0.9 if messages else 1.0) for operations, _, messages, _ in COUNTS]
    found = fit_rates(estimates(MachineRates(1.0, 1.0, 1.0, 1.0)), times)
    assert found.operations > 0
    assert (found.launch, found.latency, found.bandwidth) == (0.0, 0.0, math.inf)
