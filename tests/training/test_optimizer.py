"""Optimizers and schedulers by name: the default learning rate, weight decay, and refused options."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from specs import SPECS
from torch import nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import build_model, needed_task
from training.optimization.optimizer import decay_groups, make_optimizer, make_scheduler
from training.run.trainer_options import TrainerOptions

TASK = Task("toy", ["2t", "msl"], ["2t"], [48])
GRID = Grid.regular(33, 64)
DOCUMENT = (Path(__file__).parents[2] / "docs/training.md").read_text()
BLOCKS = [OmegaConf.to_container(OmegaConf.create(text)) for text in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.S)]
TORCH = "torch.optim.lr_scheduler"


def rates_and_momenta(schedule, steps, epochs=5):
    """Learning rate and momentum of every step of a run."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))]}]
    optimizer = make_optimizer(schedule.optimizer, groups, schedule.learning_rate)
    made = make_scheduler(schedule.scheduler, optimizer, schedule.learning_rate, steps, epochs)
    found = []
    for step in range(steps):
        (group,) = optimizer.param_groups
        found.append((group["lr"], group["betas"][0]))
        optimizer.step()
        last = step + 1 == steps
        if not last and (made["interval"] == "step" or (step + 1) % (steps // epochs) == 0):
            made["scheduler"].step(*([1.0] if "monitor" in made else []))
    return found


def cosine_between(start, end, part):
    return end + (start - end) / 2 * (1 + math.cos(math.pi * part))


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_the_default_is_one_cycle_over_all_steps(steps):
    """Cosine from 1/25 up over 30 % of all steps, then down to 1/250,000; momentum in the opposite direction."""
    peak, last = 0.3 * steps - 1, steps - 1
    for step, (rate, momentum) in enumerate(rates_and_momenta(TrainerOptions(learning_rate=0.02), steps)):
        if step < peak:
            expected = cosine_between(1 / 25, 1, step / peak), cosine_between(0.95, 0.85, step / peak)
        else:
            part = (step - peak) / (last - peak)
            expected = cosine_between(1, 1 / 250_000, part), cosine_between(0.85, 0.95, part)
        assert (rate, momentum) == pytest.approx((0.02 * expected[0], expected[1]), rel=1e-12)


def test_documented_schedulers_match_their_comments():
    warm, plateau, constant = (TrainerOptions(**block["trainer"]) for block in BLOCKS)
    rates = [rate / 2e-3 for rate, _ in rates_and_momenta(warm, 100)]
    assert rates[:6] == pytest.approx([0.01, 0.208, 0.406, 0.604, 0.802, 1.0])
    assert rates[5:] == pytest.approx([(1 + math.cos(math.pi * step / 95)) / 2 for step in range(95)], abs=1e-12)
    assert {rate for rate, _ in rates_and_momenta(constant, 30)} == {2e-3}
    # The score never improves after the first epoch; after six epochs without improvement the rate is lowered.
    rates = [rate for rate, _ in rates_and_momenta(plateau, 10, epochs=10)]
    assert rates == pytest.approx(7 * [2e-3] + 3 * [2e-4])


def test_steps_are_fractions_of_the_interval():
    spec = {"_target_": f"{TORCH}.LinearLR", "start_factor": 1.0, "end_factor": 0.0, "total_iters": {"_steps_": 0.5}}
    by_step = [rate for rate, _ in rates_and_momenta(TrainerOptions(learning_rate=1.0, scheduler=spec), 40)]
    assert by_step == pytest.approx([max(0.0, 1 - step / 20) for step in range(40)])
    by_epoch = [
        rate
        for rate, _ in rates_and_momenta(
            TrainerOptions(learning_rate=1.0, scheduler=spec | {"interval": "epoch"}), 40, 8
        )
    ]
    assert by_epoch == pytest.approx([max(0.0, 1 - step // 5 / 4) for step in range(40)])


# Weight decay.


@pytest.mark.parametrize("name", SPECS)
def test_only_matrices_and_kernels_have_weight_decay(name):
    """In a step without gradients AdamW applies only weight decay."""
    spec = SPECS[name]
    model = build_model(spec, needed_task(spec, TASK), GRID)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return
    for parameter in model.parameters():
        nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    make_optimizer(None, decay_groups(model, 0.5, GRID.shape), 0.1).step()
    owners = dict(model.named_modules())
    for path, parameter in model.named_parameters():
        owner, _, own = path.rpartition(".")
        kind = type(owners[owner]).__name__
        constant = own in ("bias", "embedding", "gain") or "Norm" in kind or kind in ("LocallyConnected", "LatentGate")
        assert float(parameter.detach().min()) == pytest.approx(1.0 if constant else 0.95), (path, kind)
        assert float(parameter.detach().max()) == pytest.approx(1.0 if constant else 0.95), (path, kind)


def test_the_default_follows_the_formulas_of_adamw():
    """Kingma & Ba 2015 (arXiv:1412.6980), algorithm 1, with the decay of Loshchilov & Hutter, in double precision."""
    random = np.random.default_rng(3)
    expected, gradients = random.normal(size=7), random.normal(size=(5, 7))
    weight = nn.Parameter(torch.from_numpy(expected.copy()))
    optimizer = make_optimizer(None, [{"params": [weight], "weight_decay": 0.5}], 0.1)
    mean, square = np.zeros(7), np.zeros(7)
    for step, gradient in enumerate(gradients, 1):
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        change = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        expected = (1 - 0.1 * 0.5) * expected - 0.1 * change
    np.testing.assert_allclose(weight.detach(), expected, rtol=0, atol=1e-13 * np.abs(expected).max())


class Backbone(nn.Module):
    """Like timm's vision transformers: a matrix, and a token that is exempt from weight decay."""

    def __init__(self):
        super().__init__()
        self.mix, self.token = nn.Linear(3, 4), nn.Parameter(torch.ones(1, 4, 5))
        self.names, self.map = nn.Embedding(6, 4), nn.Parameter(torch.ones(2, *GRID.shape))

    def no_weight_decay(self):
        return {"token"}


def test_a_foreign_network_can_exempt_share_and_freeze_parameters():
    net = Backbone()
    net.mix_again = nn.Linear(3, 4)
    net.mix_again.weight = net.mix.weight  # a shared parameter counts once, a frozen one not at all
    net.mix_again.bias.requires_grad_(False)
    decayed, exempt = decay_groups(net, 0.1, GRID.shape)
    assert decayed == {"params": [net.mix.weight], "weight_decay": 0.1}
    assert {id(parameter) for parameter in exempt["params"]} == {
        id(parameter) for parameter in (net.mix.bias, net.token, net.names.weight, net.map)
    }
    assert exempt["weight_decay"] == 0.0
    assert len(decay_groups(net, 0.0, GRID.shape)) == 1


# Refused options.


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"_target_": f"{TORCH}.OneCycleLR", "pct_start": 2.0}, "cannot be created: Expected float between 0 and 1"),
        ({"_target_": f"{TORCH}.CosineAnnealingLR", "T_max": {"_steps_": 2}}, "_steps_ must be a fraction of all"),
    ],
)  # fmt: skip
def test_errors_of_constructors_are_one_error_line(spec, sentence):
    with pytest.raises(InputError, match=rf"trainer\.scheduler.*: .*{sentence}"):
        rates_and_momenta(TrainerOptions(scheduler=spec), 10)
