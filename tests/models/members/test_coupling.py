"""Members that `correct` writes: their values against closed forms, their order against brute force."""

import numpy as np
import pytest
import torch

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import CensoredNormal, Ensemble, Normal
from models.members.coupling import member_values, written_members
from models.members.named_draws import splitmix64
from models.members.options import CorrectionOptions
from models.parallel.domain import Domain

TASK = Task("one", ["10u"], ["10u"], [24])
RAIN = Task("rain", ["10u", "tp"], ["tp", "10u"], [24])
GRID = Grid.regular(40, 50)


def batch(members, task=TASK, starts=(1_000_000_000,)):
    """Return a batch with these members (M, B, C, H, W); the mask is True where none of them is NaN."""
    ensemble = members.movedim(0, 1)
    B, _, _, *cells = ensemble.shape
    return Sample(
        ensemble, ~ensemble.isnan().any(1), torch.zeros(B, 3, *cells), torch.zeros(B, len(task.targets), *cells),
        torch.tensor(starts), torch.full((B,), 24),
    )  # fmt: skip


def coupled(raw, distribution=None, **options):
    """Return the written members (M, cells) for raw members of this shape and a standard normal distribution."""
    cells = raw.shape[1]
    sample, grid = batch(torch.as_tensor(raw)[:, None, None, None]), Grid([0.0], list(np.linspace(0, 300, cells)))
    distribution = distribution or Normal(torch.zeros(1, 1, 1, cells).double(), torch.ones(1, 1, 1, cells).double())
    return written_members(distribution, sample, TASK, grid, CorrectionOptions(**options)).members[:, 0, 0, 0]


@pytest.mark.parametrize(
    ("levels", "expected"), [("weibull", [1 / 5, 2 / 5, 3 / 5, 4 / 5]), (None, [1 / 8, 3 / 8, 5 / 8, 7 / 8])]
)
def test_the_values_are_quantiles_at_plotting_positions(levels, expected):
    stats = pytest.importorskip("scipy.stats")
    normal = Normal(torch.full((1, 1, 1, 1), 5.0).double(), torch.full((1, 1, 1, 1), 2.0).double())
    options = {"quantile_levels": levels} if levels else {}  # the default is Hazen's
    found = coupled(np.array([[3.0], [1.0], [2.0], [0.0]]), normal, **options)[:, 0]
    np.testing.assert_allclose(found, stats.norm(5, 2).ppf(np.array(expected)[[3, 1, 2, 0]]), rtol=1e-12)


def test_equal_raw_members_get_the_highest_rank_equally_often():
    """With 3 dry members, each ranks highest in a third of the cells, in other cells for another seed or start."""
    dry = torch.zeros(3, 2, 2, *GRID.shape)
    drizzle = torch.full((2, 2, *GRID.shape), 0.1)
    rain = CensoredNormal(0 * drizzle, drizzle, torch.tensor(0.0))  # no more than one of three members is wet

    def wettest(seed=0, starts=(0, 86_400)):
        found = written_members(rain, batch(dry, RAIN, starts), RAIN, GRID, CorrectionOptions(seed=seed)).members
        assert ((found > 0).sum(0) == 1).all()
        return found.argmax(0)

    found = wettest()
    assert torch.equal(found, wettest())
    first, later, other = found[0, 0], found[1, 0], found[0, 1]
    others = [later, other, first.roll(1, 0), first.roll(1, 1), wettest(seed=1)[0, 0], wettest(starts=(1, 2))[0, 0]]
    N = first.numel()
    for member in range(3):
        assert (first == member).sum() == pytest.approx(N / 3, abs=4 * (N * 2 / 9) ** 0.5)
    for each in others:
        assert (first == each).sum() == pytest.approx(N / 3, abs=4 * (N * 2 / 9) ** 0.5)


def test_tiles_have_the_random_numbers_of_the_globe():
    generator = torch.Generator().manual_seed(1)
    raw = torch.randint(2, (4, 2, 2, *GRID.shape), generator=generator).float()
    normal = Normal(*torch.rand(2, 2, 2, *GRID.shape, generator=generator))
    sample = batch(raw, RAIN, (0, 86_400))
    whole = written_members(normal, sample, RAIN, GRID).members
    for rank in range(6):
        domain = Domain.split(GRID, 3, 2, rank)
        own = sample._replace(ensemble=domain.cut(sample.ensemble), mask=domain.cut(sample.mask))
        part = written_members(Normal(domain.cut(normal.mu), domain.cut(normal.sigma)), own, RAIN, domain)
        assert torch.equal(part.members, domain.cut(whole))


def test_members_are_clamped_to_physical_bounds():
    raw = torch.rand(5, 1, 2, *GRID.shape, generator=torch.Generator().manual_seed(2)) - 0.5
    normal = Normal(torch.zeros(1, 2, *GRID.shape), torch.ones(1, 2, *GRID.shape))
    rain, wind = written_members(normal, batch(raw, RAIN), RAIN, GRID).members.unbind(2)
    assert rain.min() == 0
    assert wind.min() < 0
    # Raw members are unchanged where one of them is missing.
    raw[2, 0, 1, 0] = torch.nan
    left = written_members(normal, batch(raw, RAIN), RAIN, GRID).members[:, 0, 0, 0]
    torch.testing.assert_close(left, raw[:, 0, 1, 0], rtol=0, atol=0, equal_nan=True)


def test_member_values_are_the_members_in_increasing_order():
    raw = torch.randn(5, 1, 2, *GRID.shape, generator=torch.Generator().manual_seed(3))
    for forecast in (Normal(raw[0], raw[1].exp()), Ensemble(raw), Ensemble(raw[:3])):
        values = member_values(forecast, RAIN, 5).members
        members = written_members(forecast, batch(raw, RAIN), RAIN, GRID).members
        assert torch.equal(values, members.sort(0).values)


def test_the_hash_that_breaks_ties_is_splitmix64():
    """Published outputs of SplitMix64 for the seed 1234567; its state grows by 0x9E3779B97F4A7C15 at each call."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    states = [(1234567 + call * 0x9E3779B97F4A7C15) % 2**64 for call in range(4)]
    assert splitmix64(np.array(states, np.uint64)).tolist() == published
