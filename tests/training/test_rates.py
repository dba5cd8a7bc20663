"""Rates against PyTorch's schedulers, and by what they promise."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from data_pipeline.errors import InputError
from training.rates import Constant, Cosine, OneCycle, Plateau


def adam(rate):
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=rate)


@pytest.mark.parametrize("steps", [2, 3, 7, 24, 100])
@pytest.mark.parametrize("rising", [0.0, 0.3, 0.7])
def test_one_cycle_is_that_of_pytorch(steps, rising):
    optimizer = adam(0.02)
    scheduler = OneCycleLR(optimizer, 0.02, total_steps=steps, pct_start=rising)
    for step in range(steps):
        (group,) = optimizer.param_groups
        pace = OneCycle(rising)(step, steps, [])
        assert 0.02 * pace.rate == pytest.approx(group["lr"], rel=1e-12)
        assert pace.momentum == pytest.approx(group["betas"][0], rel=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    "rate", [OneCycle(), OneCycle(1.0), OneCycle(0.1), Cosine(), Cosine(0.5), Constant(), Plateau()]
)
@pytest.mark.parametrize("steps", [1, 2, 10])
def test_every_step_has_a_rate_however_few_there_are(rate, steps):
    paces = [rate(step, steps, []) for step in range(steps)]
    assert all(0 < pace.rate <= 1 and 0.85 <= pace.momentum <= 0.95 for pace in paces)


def test_cosine_rises_evenly_and_falls_along_a_wave():
    rates = [Cosine(0.2)(step, 20, []).rate for step in range(20)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[12] == pytest.approx(0.5)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[19] == pytest.approx((1 - math.cos(math.pi / 16)) / 2)
    assert {Cosine(0)(0, n, []).rate for n in (1, 5)} == {1.0}


@pytest.mark.parametrize("plateau", [Plateau(0.3, 2, 0.05), Plateau(0.1, 0), Plateau(0.5, 4)])
def test_plateau_is_that_of_pytorch(plateau):
    drawn = torch.rand(60, generator=torch.Generator().manual_seed(1)).tolist()
    scores = [score + 1 / (1 + epoch) if epoch != 7 else math.nan for epoch, score in enumerate(drawn)]
    optimizer = adam(1e-3)
    scheduler = ReduceLROnPlateau(
        optimizer, factor=plateau.factor, patience=plateau.patience, threshold=0, min_lr=1e-3 * plateau.least, eps=0
    )
    found = []
    for epoch in range(61):
        found.append(plateau(10 * epoch, 610, scores[:epoch]).rate)
        assert 1e-3 * found[-1] == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        if epoch < 60:
            scheduler.step(scores[epoch])
    assert len(set(found)) > 3


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        (OneCycle, "rising", 1.1), (Cosine, "rising", 1.0), (Plateau, "factor", 1.0), (Plateau, "factor", 0.0),
        (Plateau, "patience", -1), (Plateau, "least", 2.0),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_with_its_value(kind, option, value):
    with pytest.raises(InputError, match=rf"trainer\.rate\.{option} must be .*, got {value!r}"):
        kind(**{option: value})
