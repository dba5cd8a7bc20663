"""Every model of conf/model on the tiles of several ranks against the same model on the whole globe.

One process computes the results on the whole globe and saves them; each rank of each mesh compares its tile with them.
"""

import torch
import torch.distributed as dist
from ranks import run_on_ranks
from specs import SPECS as SHIPPED
from specs import TWO_PATHS

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector, build_model, needed_task
from models.layers.loss_term import loss_terms
from models.parallel.domain import Domain
from models.parallel.exchange import allsum
from models.protocol import claims

SPECS = SHIPPED | {
    "emos of one set": SHIPPED["emos"] | {"shared": True},
    "emos of windows": SHIPPED["emos"] | {"seasonal": False, "window_days": 120},
    "smoe of choices": SHIPPED["smoe_unet"] | {"mixture": {"experts": 2, "gate": "latent", "scale_by_gate": True}},
    **TWO_PATHS,
    "mlp from emos": SHIPPED["mlp"] | {"baseline": {}},
    "boosted of one set": SHIPPED["boosted_emos"] | {"shared": True, "products": True},
}
TASK = Task("toy", ["sst", "2t", "10u"], ["2t"], [24, 48], ["lsm"])
ODD, COARSE = Grid.regular(29, 50), Grid.regular(37, 72)
"""A grid whose rows and columns no mesh divides, also at half the resolution; and a grid of 5 degrees."""
BUILT = {name: build_model(spec, needed_task(spec, TASK), ODD) for name, spec in SPECS.items()}
SPECS = {name: spec for name, spec in SPECS.items() if claims(BUILT[name]).tiles}
NETWORKS = [name for name in SPECS if [*BUILT[name].parameters()]]
STATISTICAL = [name for name in SPECS if name not in NETWORKS]
SPECS["emos of partly one set"] = SHIPPED["emos"] | {"shared": "partly"}
"""Not among the cases: every rank computes all five fits of this model, which takes long."""
TRUNK = {"_target_": "models.networks.trunk.Trunk", "width": 4, "depth": 1, "dropout": 0.0, "mixture": None}
GIVEN = {"inputs_argument": "inputs", "grid_argument": "grid", "tiles": True}
SPECS["backbone on tiles"] = SHIPPED["backbone"] | {"backbone": TRUNK} | GIVEN
SPECS["deep_weather by resnet2d"] = SHIPPED["deep_weather"] | {"uncertainty": "resnet2d"}
"""Not among the cases: it has ten blocks of layers that other networks have as well."""
FIELDS = ("ensemble", "mask", "static", "target")


class Tiled(torch.utils.data.Dataset):
    """The tile of this rank of every sample."""

    def __init__(self, dataset, domain):
        self.dataset, self.domain = dataset, domain

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return cut(self.dataset[index], self.domain)


def cut(sample, domain):
    """Return the tile of this rank of a sample or a batch."""
    return sample._replace(**{name: domain.cut(getattr(sample, name)) for name in FIELDS})


def cast(sample, dtype):
    """Return a sample in single or double precision."""
    return sample._replace(**{name: getattr(sample, name).to(dtype) for name in FIELDS if name != "mask"})


def fit_corrector(spec, data, grid):
    """Return a corrector on `grid`, fitted to the data of this rank; trained parameters are drawn at random."""
    torch.manual_seed(2)
    corrector = Corrector(needed_task(spec, TASK), grid, spec, data.static)
    corrector.fit(data if isinstance(grid, Grid) else Tiled(data, grid))
    torch.manual_seed(5)
    for parameter in corrector.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return corrector.double().eval()


def area(grid):
    """Return the weight of every cell in the score of the globe, (H, W)."""
    return torch.tensor(grid.weights)[:, None].expand(grid.shape) / (grid.shape[0] * grid.shape[1])


def crps_sum(corrector, sample, weights):
    """Return the forecast and this rank's part of its score."""
    normal = corrector.normalizer(sample)
    found = corrector.model(normal)
    return found, (found.crps(normal.target) * weights.to(normal.target)).sum() + loss_terms(corrector)


def tensors(corrector, sample, weights):
    """Return mean, standard deviation, score and all gradients of the score of a batch."""
    found, loss = crps_sum(corrector, sample, weights)
    parameters = list(corrector.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True) if loss.requires_grad else ()
    return [found.mean.detach(), found.std.detach()], [loss.detach(), *gradients]


def batch(toy, task, grid):
    """Return a batch outside the training data."""
    return cast(next(batches(toy(task, grid, 3, 5, seed=7), 3)), torch.float64)


def save_expected_results(path, toy, cases):
    """Save the results on whole grids of all cases, by model and grid."""
    found = {}
    for name, grid in cases:
        task = needed_task(SPECS[name], TASK)
        corrector = fit_corrector(SPECS[name], toy(task, grid, 40), grid)
        found[name, str(grid)] = corrector.state_dict(), *tensors(corrector, batch(toy, task, grid), area(grid))
    torch.save(found, path)
    return path


def assert_same(mesh, path, toy, cases):
    """Compare every model on a mesh of bands and sectors with the saved results on the whole grid."""
    for found in run_on_ranks(mesh[0] * mesh[1], differences, *mesh, path, toy, cases):
        for case, largest in found.items():
            assert max(largest) < 1e-12, (case, largest)


def differences(rank, bands, sectors, path, toy, cases):
    """Largest relative differences between tiles and whole grid: fitted state, mean, spread, score and gradients."""
    expected, found = torch.load(path), {}
    for name, grid in cases:
        domain, task = (
            Domain.split(grid, bands, sectors, rank, dist.group.WORLD.group_name),
            needed_task(SPECS[name], TASK),
        )
        state, fields, sums = expected[name, str(grid)]
        corrector = fit_corrector(SPECS[name], toy(task, grid, 40), domain)
        pairs = [(corrector.state_dict()[key], value) for key, value in state.items()]
        corrector.load_state_dict(state)
        own_fields, own_sums = tensors(corrector, cut(batch(toy, task, grid), domain), domain.cut(area(grid)))
        pairs += zip(own_fields, map(domain.cut, fields), strict=True)
        pairs += [(allsum(own, domain), one) for own, one in zip(own_sums, sums, strict=True)]
        found[name, str(grid)] = [relative(own.nan_to_num(), one.nan_to_num()) for own, one in pairs]
    return found


def relative(found, expected):
    """The largest difference in units of the largest value."""
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
