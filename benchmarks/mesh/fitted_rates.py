"""`fit_rates`: the rates of a machine that explain measured steps, for the estimates of `trainer.mesh=auto`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from training.step.mesh_choice import MachineRates, MeshEstimate


def fit_rates(estimates: Sequence[MeshEstimate], seconds: Sequence[float]) -> MachineRates:
    """Return the rates with which the estimates have the smallest sum of squared relative errors.

    `seconds` are the measured times.
    """
    counts = np.array([(each.operations, each.operators, each.messages, each.sent) for each in estimates], float)
    terms = counts / np.array(seconds)[:, None]
    scale = terms.max(axis=0)
    per_operation, launch, latency, per_byte = nnls(terms / scale, np.ones(len(terms)))[0] / scale
    rate, bandwidth = (1 / each if each else math.inf for each in (per_operation, per_byte))
    return MachineRates(rate, launch, latency, bandwidth)
