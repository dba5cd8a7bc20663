"""Every model of conf/model on several ranks gives the numbers that it gives on one."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from ranks import together

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector, needs
from models.spatial.domain import Domain
from models.spatial.dropout import drawn_for
from models.spatial.exchange import allsum

CONF = Path(__file__).parents[2] / "conf" / "model"
SPECS = {path.stem: OmegaConf.to_container(OmegaConf.load(path)) for path in sorted(CONF.glob("*.yaml"))}
SPECS["emos of one set"] = SPECS["emos"] | {"shared": True}
TASK = Task("toy", ["sst", "2t", "msl"], ["2t"], [24, 48], ["lsm"])
GRIDS = [Grid.regular(33, 64), Grid.regular(29, 50), Grid.regular(37, 72)]
MESHES = [(2, 1), (1, 2), (3, 1), (4, 1), (2, 2)]


class Tiled(torch.utils.data.Dataset):
    """The own tile of every sample."""

    def __init__(self, dataset, domain):
        self.dataset, self.domain = dataset, domain

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return cut(self.dataset[index], self.domain)


def cut(sample, domain):
    fields = ("ensemble", "mask", "static", "target")
    return sample._replace(**{name: domain.cut(getattr(sample, name)) for name in fields})


def double(sample):
    return sample._replace(
        ensemble=sample.ensemble.double(), static=sample.static.double(), target=sample.target.double()
    )


def fitted(spec, data, grid):
    torch.manual_seed(2)
    corrector = Corrector(needs(spec, TASK), grid, spec, data.static)
    corrector.fit(data if isinstance(grid, Grid) else Tiled(data, grid))
    torch.manual_seed(5)
    for parameter in corrector.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return corrector.double().eval()


def crps_sum(corrector, sample, weights):
    normal = corrector.normalizer(sample)
    found = corrector.model(normal)
    return found, (found.crps(normal.target) * weights).sum()


def compare(rank, bands, sectors, name, grid, toy):
    """Largest relative differences between whole and tiles: fitted values, mean, std, loss, gradients."""
    spec, domain = SPECS[name], Domain.split(grid, bands, sectors, rank, dist.group.WORLD)
    task = needs(spec, TASK)
    data = toy(task, grid, 40)
    one, many = fitted(spec, data, grid), fitted(spec, data, domain)
    pairs = [(many.state_dict()[key], value) for key, value in one.state_dict().items()]
    many.load_state_dict(one.state_dict())
    sample = double(next(batches(toy(task, grid, 3, 5, seed=7), 3)))
    weights = torch.tensor(grid.weights)[:, None].expand(grid.shape)
    whole, loss = crps_sum(one, sample, weights)
    tile, part = crps_sum(many, cut(sample, domain), domain.cut(weights))
    pairs += [(tile.mean, domain.cut(whole.mean)), (tile.std, domain.cut(whole.std)), (allsum(part, domain), loss)]
    if loss.requires_grad:
        loss.backward()
        part.backward()
        pairs += [
            (allsum(theirs.grad, domain), ours.grad)
            for theirs, ours in zip(many.parameters(), one.parameters(), strict=True)
        ]
    return [
        float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
        for found, expected in ((f.detach().nan_to_num(), e.detach().nan_to_num()) for f, e in pairs)
    ]


def every_case(rank, bands, sectors, toy):
    return {(name, str(grid)): compare(rank, bands, sectors, name, grid, toy) for name in SPECS for grid in GRIDS[:2]}


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"{mesh[0]}x{mesh[1]}")
def test_tiles_give_the_numbers_of_the_whole(mesh, toy):
    for found in together(mesh[0] * mesh[1], every_case, *mesh, toy):
        for case, differences in found.items():
            print(case, max(differences))
            assert max(differences) < 1e-12, (case, differences)


def train(corrector, samples, weights, domain, dtype):
    """Losses of twenty steps of AdamW; each rank steps with the gradients of all."""
    corrector.to(dtype).train()
    optimizer = torch.optim.AdamW(corrector.model.parameters(), lr=1e-2)
    losses = []
    for step in range(20):
        torch.manual_seed(step)
        sample = samples[step % len(samples)]
        with drawn_for(sample):
            _, loss = crps_sum(corrector, sample, weights)
        optimizer.zero_grad()
        loss.backward()
        for parameter in corrector.model.parameters():
            parameter.grad = allsum(parameter.grad, domain)
        optimizer.step()
        losses.append(float(allsum(loss.detach(), domain)))
    return losses


def twenty_steps(rank, bands, sectors, name, dtype, toy):
    grid, spec = Grid.regular(17, 24), SPECS[name]
    domain = Domain.split(grid, bands, sectors, rank, dist.group.WORLD)
    data = toy(TASK, grid, 40)
    one, many = fitted(spec, data, grid), fitted(spec, data, domain)
    many.load_state_dict(one.state_dict())
    weights = torch.tensor(grid.weights / grid.weights.size, dtype=dtype)[:, None].expand(grid.shape) / grid.shape[1]
    samples = [
        batch._replace(**{field: getattr(batch, field).to(dtype) for field in ("ensemble", "static", "target")})
        for batch in batches(data, 4)
    ]
    whole = train(one, samples, weights, Domain.of(grid), dtype)
    tiles = train(many, [cut(sample, domain) for sample in samples], domain.cut(weights), domain, dtype)
    return whole, tiles


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("name", ["mlp", "unet"])
def test_twenty_steps_of_training_are_the_same(name, dtype, tolerance, toy):
    for whole, tiles in together(4, twenty_steps, 2, 2, name, dtype, toy):
        assert min(whole) < whole[0], "it learns"
        assert tiles == pytest.approx(whole, rel=tolerance)
