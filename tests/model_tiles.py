"""Every model of conf/model on the tiles of several ranks against the same model on the whole globe.

One process computes the results on the whole globe and saves them; each rank of each mesh compares its tile with them.
"""

import torch
from specs import QUICK, VARIANTS
from specs import SPECS as SHIPPED

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector, build_model, needed_task
from models.layers.dropout import masks_for
from models.layers.loss_term import loss_terms
from models.parallel.domain import Domain
from models.parallel.exchange import allsum
from models.protocol import claims

SPECS = QUICK | {
    "emos that shares": SHIPPED["emos"],
    "emos of one set": QUICK["emos"] | {"shared": True},
    "emos of windows": QUICK["emos"] | {"seasonal": False, "window_days": 120},
    "smoe of choices": SHIPPED["smoe_unet"] | {"mixture": {"experts": 2, "gate": "latent"}},
    **{name: VARIANTS[name] for name in ("unet of two paths", "members")},
    "mlp from emos": SHIPPED["mlp"] | {"baseline": {"shared": False}},
    "boosted of one set": SHIPPED["boosted_emos"] | {"shared": True, "products": True},
}
TASK = Task("toy", ["sst", "2t", "10u"], ["2t"], [24, 48], ["lsm"])
ODD, SMALL = Grid.regular(17, 26), Grid.regular(7, 12)
"""A grid whose rows no mesh divides, and whose columns no mesh divides at half the resolution; and a smaller one."""
BUILT = {name: build_model(spec, needed_task(spec, TASK), ODD) for name, spec in SPECS.items()}
SPECS = {name: spec for name, spec in SPECS.items() if claims(BUILT[name]).tiles}
NETWORKS = [name for name in SPECS if [*BUILT[name].parameters()]]
FITTED = ["mlp", "mlp from emos", *(name for name in SPECS if name not in NETWORKS)]
"""Models that are fitted on tiles. All networks fit the error maps of `mlp`, so that the others get a fitted state."""
CASES = {name: ODD if name in NETWORKS else SMALL for name in SPECS}
SPECS["deep_weather by resnet2d"] = SHIPPED["deep_weather"] | {"uncertainty": "resnet2d"}
CASES |= {name: SMALL for name in SPECS if name not in CASES}
FIELDS = ("ensemble", "mask", "static", "target")


class Tiled(torch.utils.data.Dataset):
    """The tile of this rank of every sample, in double precision: fits then agree to nine digits."""

    def __init__(self, dataset, domain):
        self.dataset, self.domain = dataset, domain

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return cast(cut(self.dataset[index], self.domain), torch.float64)


def cut(sample, domain):
    """Return the tile of this rank of a sample or a batch."""
    return sample._replace(**{name: domain.cut(getattr(sample, name)) for name in FIELDS})


def cast(sample, dtype):
    """Return a sample in single or double precision."""
    return sample._replace(**{name: getattr(sample, name).to(dtype) for name in FIELDS if name != "mask"})


def make_corrector(spec, grid, static, state=None):
    """Return a corrector on `grid`, with a fitted state if there is one; trained parameters are drawn at random."""
    torch.manual_seed(2)
    corrector = Corrector(needed_task(spec, TASK), grid, spec, static).double()
    if state:
        corrector.load_state_dict(state)
    return corrector


def fit_corrector(spec, grid, data):
    """Return the state of a corrector on `grid`, fitted to the data of this rank."""
    corrector = make_corrector(spec, grid, data.static)
    corrector.fit(Tiled(data, Domain.of(grid)))
    torch.manual_seed(5)
    for parameter in corrector.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return corrector.state_dict()


def area(grid):
    """Return the weight of every cell in the score of the globe, (H, W)."""
    return torch.tensor(grid.weights)[:, None].expand(grid.shape) / (grid.shape[0] * grid.shape[1])


def tensors(corrector, sample, weights):
    """Return the forecast; score and gradients of a training step, with dropout; running statistics after it.

    Gradients of networks with batch normalisation are those of evaluation mode: in training mode some of them are small
    differences of large sums.
    """
    sample = corrector.normalizer(sample)
    found = corrector.model.eval()(sample)
    fields, parameters = [found.mean.detach(), found.std.detach()], list(corrector.parameters())
    if not parameters:
        return fields, [], []
    statistics = [value for name, value in corrector.state_dict().items() if "running" in name]
    if not statistics:
        torch.manual_seed(1)
        with masks_for(sample):
            found = corrector.model.train()(sample)
    loss = (found.crps(sample.target) * weights.to(sample.target)).sum() + loss_terms(corrector)
    sums = [loss.detach(), *torch.autograd.grad(loss, parameters)]
    with torch.no_grad():
        corrector.model.train()(sample)
    return fields, sums, statistics


def batch(toy, task, grid):
    """Return a batch outside the training data."""
    return cast(next(batches(toy(task, grid, 3, 5, seed=7), 3)), torch.float64)


def save_expected_results(path, toy, cases):
    """Save the results on whole grids of all cases."""
    found = {}
    for name, grid in cases.items():
        data = toy(needed_task(SPECS[name], TASK), grid, 40)
        state = fit_corrector(SPECS[name], grid, data)
        corrector = make_corrector(SPECS[name], grid, data.static, state)
        found[name] = state, *tensors(corrector, batch(toy, data.task, grid), area(grid))
    torch.save(found, path)
    return path


def differences(mesh, path, toy, cases, fitted=()):
    """Largest relative differences between tiles and whole grid, of fitted states and of forecasts and gradients."""
    expected, found = torch.load(path), {}
    for name, grid in cases.items():
        domain, data = mesh.domain(grid), toy(needed_task(SPECS[name], TASK), grid, 40)
        state, fields, sums, statistics = expected[name]
        own = fit_corrector(SPECS[name], domain, data) if name in fitted else {}
        fits = [relative(value.nan_to_num(), state[key].nan_to_num()) for key, value in own.items()]
        corrector = make_corrector(SPECS[name], domain, data.static, state)
        own = tensors(corrector, cut(batch(toy, data.task, grid), domain), domain.cut(area(grid)))
        pairs = [*zip(own[0], map(domain.cut, fields), strict=True)]
        pairs += [(allsum(part, domain), whole) for part, whole in zip(own[1], sums, strict=True)]
        pairs += zip(own[2], statistics, strict=True)
        results = [relative(ours.nan_to_num(), theirs.nan_to_num()) for ours, theirs in pairs]
        found[name] = max(fits, default=0.0), max(results)
    return found


def relative(found, expected):
    """The largest difference in units of the largest value."""
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
