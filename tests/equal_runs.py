"""Two training runs, or the scores of two evaluations, are equal up to rounding."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file


def check_equal_runs(first, second):
    """Compare weights and tables of epochs; what is fitted before the first step is equal to the bit.

    Adam divides a gradient by its size, so rounding moves weights with tiny gradients by a part of the learning rate,
    2e-3, in every step: measured 2e-5 after ten steps. Wrong gradients move weights by whole steps.
    """
    expected, found = (load_file(folder / "corrector.safetensors") for folder in (first, second))
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        if name.startswith(("normalizer.", "model.features.errors.", "model.head.start.")):
            assert torch.equal(found[name], tensor), name
        torch.testing.assert_close(
            found[name], tensor, rtol=1e-3, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    tables = [np.loadtxt(folder / "metrics.csv", delimiter=",", skiprows=1) for folder in (first, second)]
    np.testing.assert_allclose(*tables, rtol=1e-5)


def read_scores(folder):
    """Return the values of `scores.json` by their path, without those that describe the run."""

    def leaves(value, path=""):
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            own = [leaves(inner, f"{path}/{name}") for name, inner in items if name not in ("provenance", "warnings")]
            return {key: leaf for found in own for key, leaf in found.items()}
        return {path: value}

    return leaves(json.loads((folder / "scores.json").read_text()))


def check_equal_scores(found, expected, tolerance):
    """Compare scores by their path."""
    assert found == {
        key: pytest.approx(value, rel=tolerance, abs=tolerance) if isinstance(value, float) else value
        for key, value in expected.items()
    }
