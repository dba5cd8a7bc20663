"""A check of any distribution in other units."""

import torch


def check_affine(before, y, shift, stretch, level, close):
    """Check that `affine` shifts and scales moments, score and quantiles; `close` holds the tolerances."""
    after = before.affine(shift, stretch)
    torch.testing.assert_close(after.mean, shift + stretch * before.mean, **close)
    torch.testing.assert_close(after.std, stretch * before.std, **close)
    torch.testing.assert_close(after.crps(shift + stretch * y), stretch * before.crps(y), **close)
    torch.testing.assert_close(after.quantile(level), shift + stretch * before.quantile(level), **close)
    return after
