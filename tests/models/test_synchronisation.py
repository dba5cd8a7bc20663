"""Networks never make the host wait for a device, and create tensors on their own device only."""

import pytest
import torch
from specs import SPECS
from synchronisation import Waits

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import build_model, needed_task
from models.layers.dropout import masks_for
from models.layers.loss_term import loss_terms
from models.parallel import quantile
from models.parallel.domain import Domain

TASK = Task("toy", ["sst", "2t", "10u"], ["2t"], [24, 48], ["lsm"])
GRID = Grid.regular(13, 20)
MORE = {
    "chosen": SPECS["unet"] | {"mixture": {"gate": "latent", "scale_by_gate": True}},
    "routed": SPECS["unet"] | {"mixture": {"gate": "computed", "routing": {}}},
    "rough": SPECS["deep_weather"] | {"smoothness_penalty": 0.5},
    "windows": SPECS["transformer"] | {"attention_window": 3, "cell_embedding": 2},
    "mlp from emos": SPECS["mlp"] | {"baseline": {"seasonal": False, "window_days": 60}},
    "gamma": SPECS["mlp"] | {"head": "censored_shifted_gamma"},
}
ALL = SPECS | MORE
del ALL["boosted_emos"]  # has no training steps; it reads lead times on the host, so that it need not copy maps


def step(name, toy, device):
    """Run forward and backward pass of a training step; return the operations that make the host wait."""
    spec = ALL[name] | ({"dropout": 0.2} if "dropout" in ALL[name] else {})
    task = needed_task(spec, TASK)
    model = build_model(spec, task, GRID).train()
    sample = next(iter(batches(toy(task, GRID, 3, 4), 3)))
    model, sample = model.to(device), sample._replace(**{k: v.to(device) for k, v in sample._asdict().items()})
    with Waits() as waits:
        with masks_for(sample):
            found = model(sample)
        loss = found.crps(sample.target).mean() + loss_terms(model) / 3
        if loss.requires_grad:
            loss.backward()
    return loss, waits.found


@pytest.mark.parametrize("name", ALL)
def test_no_training_step_makes_the_host_wait(name, toy):
    assert not step(name, toy, "cpu")[1]


@pytest.mark.parametrize("name", ALL)
def test_networks_create_tensors_on_their_own_device_only(name, toy):
    """Tensors on `meta` have no values: reading one, or mixing it with a tensor on another device, fails."""
    loss, waits = step(name, toy, "meta")
    assert loss.device.type == "meta"
    assert not waits


def test_quantiles_over_tiles_do_not_make_the_host_wait(monkeypatch):
    monkeypatch.setattr(quantile, "sum_over", lambda group, x: x)
    x = torch.rand(3, 4 * 13 * 20, generator=torch.Generator().manual_seed(0)) ** 4
    with Waits() as waits:
        found = quantile._quantile._init_fn(x, 0.77, x.shape[1], "a group")
    assert not waits.found
    torch.testing.assert_close(found, x.quantile(0.77, dim=1))
    assert torch.equal(found, quantile.quantile(x.view(3, 4, 13, 20), 0.77, Domain.of(GRID)))


@pytest.mark.parametrize("ask", [torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.item])
def test_reading_a_tensor_without_values_fails(ask):
    with pytest.raises((NotImplementedError, RuntimeError, TypeError)):
        ask(torch.zeros((), device="meta"))


@pytest.mark.parametrize(
    ("name", "wait"),
    {
        "item": lambda x: x.sum().item(),
        "bool": lambda x: bool((x > 0).all()),
        "mask": lambda x: x[x > 0],
        "mask to write": lambda x: x.index_put_((x > 2,), torch.zeros(())),
        "where": lambda x: torch.where(x > 0),
        "unique": lambda x: x.unique(),
        "repeat": lambda x: x.repeat_interleave(torch.ones(5, dtype=torch.int64)),
    }.items(),
)
def test_operations_that_make_the_host_wait_are_detected(name, wait):
    with Waits() as waits:
        wait(torch.rand(5))
    assert sum(waits.found.values()) >= 1, name
