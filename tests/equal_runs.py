"""`check_equal_runs`: two training runs are equal up to rounding."""

import numpy as np
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
