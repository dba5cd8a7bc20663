"""Training steps on several ranks give the same losses as on one."""

import pytest
import torch
import torch.distributed as dist
from model_tiles import NETWORKS, SPECS, TASK, area, cast, crps_sum, cut, fit_corrector
from ranks import run_on_ranks

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from models.layers.dropout import masks_for
from models.parallel.domain import Domain
from models.parallel.exchange import allsum

GRID = Grid.regular(17, 24)
MADE_OF_ROUNDING = ("deep_weather", "ens10_unet", "lenet")
"""Some gradients of these networks are small differences of large sums. Adam divides by the size of a gradient and so
would step by its rounding error, on one rank as well. These networks train by gradient descent with momentum."""
SINGLE = ("blend_unet", "lenet", "mlp")
"""Networks that are also tested in single precision; the others have the same layers."""
LIKE = ("bqn", "mlp from emos", "smoe of choices", "transformer_independent", "transformer_independent of two paths")
"""Networks with the layers of `mlp`, `smoe_unet` and `transformer`, left out here."""
SHORT = ("ens10_unet",)
"""The network with a state besides its weights. The others differ in loss and gradients of one step, which
`training/test_mesh.py` compares for every network, with dropout and on as many tiles."""
CASES = [
    pytest.param(name, torch.float64, 1e-10, marks=[] if name in SHORT else pytest.mark.long)
    for name in NETWORKS
    if name not in LIKE
]
CASES += [(name, torch.float32, 1e-5) for name in SINGLE]


STEPS = 6
"""A wrong gradient changes the loss of the second step; momentum and second moments act from that step on."""


def optimizer_of(name, weights):
    if name in MADE_OF_ROUNDING:
        return torch.optim.SGD(weights, lr=1e-4, momentum=0.9)
    return torch.optim.AdamW(weights, lr=1e-2)


def losses(domain, name, dtype, toy, state=None):
    """Losses of all steps, with gradients summed over all ranks; and the state before the first step."""
    data = toy(TASK, GRID, 24)
    corrector = fit_corrector(SPECS[name], data, domain)
    if state:
        corrector.load_state_dict(state)
    state = {key: value.clone() for key, value in corrector.state_dict().items()}
    corrector.to(dtype).train()
    domain = Domain.of(domain)
    samples = [cut(cast(batch, dtype), domain) for batch in batches(data, 4)]
    optimizer = optimizer_of(name, corrector.model.parameters())
    found = []
    for step in range(STEPS):
        torch.manual_seed(step)
        sample = samples[step % len(samples)]
        with masks_for(sample):
            _, loss = crps_sum(corrector, sample, domain.cut(area(GRID)))
        optimizer.zero_grad()
        loss.backward()
        for parameter in corrector.model.parameters():
            parameter.grad = allsum(parameter.grad, domain)
        optimizer.step()
        found.append(float(allsum(loss.detach(), domain)))
    return found, state


def on_tiles(rank, bands, sectors, name, dtype, toy, state):
    return losses(Domain.split(GRID, bands, sectors, rank, dist.group.WORLD.group_name), name, dtype, toy, state)[0]


@pytest.mark.parametrize(("name", "dtype", "tolerance"), CASES, ids=str)
def test_steps_of_training_are_the_same(name, dtype, tolerance, toy):
    whole, state = losses(GRID, name, dtype, toy)
    assert min(whole) < whole[0], "the loss decreases"
    for tiles in run_on_ranks(4, on_tiles, 2, 2, name, dtype, toy, state):
        assert tiles == pytest.approx(whole, rel=tolerance)
