"""Checks of any distribution: against random samples, and for other units."""

import torch

from models.distribution import Ensemble


def check_sampling(distribution, y, *, draws, moments, cdf, crps):
    """Compare moments, cdf and CRPS (3,) with those of `draws` samples; `moments` holds tolerances of mean and std."""
    sample = distribution.sample(draws, torch.Generator().manual_seed(3))
    assert sample.shape == (draws, 3)
    assert sample.dtype == torch.float64
    y = torch.tensor(y, dtype=torch.float64)
    for expected, found, tolerance in zip(
        (sample.mean(0), sample.std(0)), (distribution.mean, distribution.std), moments, strict=True
    ):
        torch.testing.assert_close(found, expected, **tolerance)
    torch.testing.assert_close(distribution.cdf(y), (sample <= y).double().mean(0), rtol=0, atol=cdf)
    torch.testing.assert_close(distribution.crps(y), Ensemble(sample).crps(y, fair=True), rtol=0, atol=crps)
    return sample


def check_affine(before, y, shift, stretch, level, close):
    """Check that `affine` shifts and scales moments, score and quantiles; `close` holds the tolerances."""
    after = before.affine(shift, stretch)
    torch.testing.assert_close(after.mean, shift + stretch * before.mean, **close)
    torch.testing.assert_close(after.std, stretch * before.std, **close)
    torch.testing.assert_close(after.crps(shift + stretch * y), stretch * before.crps(y), **close)
    torch.testing.assert_close(after.quantile(level), shift + stretch * before.quantile(level), **close)
    return after
