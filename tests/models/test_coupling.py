import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from models.coupling import ensemble_copula_coupling
from models.distribution import Ensemble, Normal

FIELDS = hnp.arrays(np.float64, (6, 3), elements=st.floats(-50, 50, width=32))


@given(FIELDS)
def test_every_member_keeps_its_rank(raw):
    raw = torch.tensor(raw)
    corrected = ensemble_copula_coupling(Normal(torch.zeros(3).double(), torch.ones(3).double()), raw)
    for cell in range(3):
        before, after = raw[:, cell].tolist(), corrected[:, cell].tolist()
        for i in range(6):
            for j in range(6):
                if before[i] < before[j] or (before[i] == before[j] and i < j):
                    assert after[i] < after[j]


def test_the_values_are_the_quantiles_k_of_m_plus_1():
    stats = pytest.importorskip("scipy.stats")
    raw = torch.tensor([3.0, 1.0, 2.0, 0.0], dtype=torch.float64)[:, None]
    corrected = ensemble_copula_coupling(Normal(torch.tensor([5.0]).double(), torch.tensor([2.0]).double()), raw)
    expected = stats.norm(5, 2).ppf([4 / 5, 2 / 5, 3 / 5, 1 / 5])
    np.testing.assert_allclose(corrected[:, 0], expected, rtol=1e-12)


@given(FIELDS)
def test_an_ensemble_coupled_with_itself_is_itself(raw):
    raw = torch.tensor(raw)
    torch.testing.assert_close(ensemble_copula_coupling(Ensemble(raw), raw), raw)
