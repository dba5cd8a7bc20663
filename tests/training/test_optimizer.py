"""Optimizers and schedulers by name: the default learning rate, weight decay, and refused options."""

import math
import re
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from pytorch_lightning.profilers import Profiler
from specs import SPECS
from torch import nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import build_model, needed_task
from training.optimization.optimizer import decay_groups, make_optimizer, make_scheduler
from training.optimization.specs import build_spec
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


def test_documented_schedulers_match_their_comments_and_steps_are_fractions_of_the_interval():
    warm, plateau, constant = (TrainerOptions(**block["trainer"]) for block in BLOCKS)
    rates = [rate / 2e-3 for rate, _ in rates_and_momenta(warm, 100)]
    assert rates[:6] == pytest.approx([0.01, 0.208, 0.406, 0.604, 0.802, 1.0])
    assert rates[5:] == pytest.approx([(1 + math.cos(math.pi * step / 95)) / 2 for step in range(95)], abs=1e-12)
    assert {rate for rate, _ in rates_and_momenta(constant, 30)} == {2e-3}
    # The score never improves after the first epoch; after six epochs without improvement the rate is lowered.
    rates = [rate for rate, _ in rates_and_momenta(plateau, 10, epochs=10)]
    assert rates == pytest.approx(7 * [2e-3] + 3 * [2e-4])
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


def test_errors_of_constructors_are_one_error_line():
    for spec, sentence in (
        ({"_target_": f"{TORCH}.OneCycleLR", "pct_start": 2.0}, "cannot be created: Expected float between 0 and 1"),
        ({"_target_": f"{TORCH}.CosineAnnealingLR", "T_max": {"_steps_": 2}}, "_steps_ must be a fraction of all"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=rf"trainer\.scheduler.*: .*{sentence}"):
            rates_and_momenta(TrainerOptions(scheduler=spec), 10)


def test_a_wrong_option_is_named_with_its_value():
    for option, value in (
        ("epochs", 0), ("epochs", "three"), ("learning_rate", -1.0), ("precision", "8"), ("batch_size", True),
        ("seed", -1), ("weight_decay", 1.5), ("accelerator", "tpu"), ("checkpoint_minutes", 0), ("gradient_clip", 0),
        ("ema_decay", 1.0), ("compile", 1), ("activation_checkpointing", "yes"), ("matmul_precision", "low"),
        ("local_steps", 0),
    ):  # fmt: skip
        with pytest.raises(InputError, match=rf"trainer.{option} must be .*, got {value!r}"):
            TrainerOptions(**{option: value})


def test_options_that_cannot_be_are_refused():
    for options, sentence in (
        ({"optimizer": "adam"}, r"trainer\.optimizer must be \{_target_: package\.Class, .*got 'adam'"),
        ({"optimizer": {"_target_": "torch.optim.AdaW"}}, r"optim\.AdaW does not exist; did you mean torch\.optim"),
        ({"optimizer": {"_target_": "torch.nn.Linear"}}, r"optimizer: torch\.nn\.Linear is not a Optimizer"),
        ({"optimizer": {"_target_": "torch.optim.SGD", "momentun": 1}}, r"has no option 'momentun'; it has .*momentum"),
        ({"optimizer": {"_target_": "torch.optim.SGD", "lr": 1}}, r"must not set 'lr'; set trainer\.learning_rate"),
        ({"optimizer": {"_target_": "torch.optim.SGD", "weight_decay": 1}}, r"'weight_decay'; set trainer\.weight"),
        ({"optimizer": {"_target_": "torch.optim.Rprop"}}, r"Rprop has no weight decay; set trainer\.weight_decay=0"),
        ({"scheduler": {"_target_": f"{TORCH}.StepLR"}}, r"scheduler has no value for its option 'step_size'"),
        ({"scheduler": {"_target_": f"{TORCH}.OneCycleLR", "interval": "week"}}, r"interval must be one of step"),
        ({"scheduler": {"_target_": f"{TORCH}.OneCycleLR", "frequency": 0}}, r"frequency must be a whole number"),
        ({"scheduler": {"_target_": f"{TORCH}.OneCycleLR", "monitor": "val_loss"}}, r"no metric; leave out monitor"),
        ({"scheduler": {"_target_": f"{TORCH}.ReduceLROnPlateau", "interval": "step"}}, r"epoch; leave out interval"),
        (
            {"scheduler": {"_target_": f"{TORCH}.SequentialLR", "milestones": [1], "schedulers": [
                {"_target_": f"{TORCH}.LinearLR", "start_facto": 1}]}},
            r"trainer\.scheduler\.schedulers\[0\] has no option 'start_facto'; it has .*start_factor",
        ),
        ({"callbacks": [{"_target_": "torch.optim.SGD"}]}, r"callbacks\[0\]: torch\.optim\.SGD is not a Callback"),
        ({"lightning": ["x"]}, r"trainer\.lightning must be \{flag: value, \.\.\.\}"),
        ({"lightning": {"detect_anomalies": True}}, r"has no flag 'detect_anomalies'; did you mean detect_anomaly\?"),
        ({"lightning": {"devices": 2}}, r"must not set devices: set trainer\.mesh"),
        ({"lightning": {"max_epochs": 2}}, r"must not set max_epochs: set trainer\.epochs"),
        (
            {"optimizer": {"_target_": "torch.optim.AdamW", "fused": True}, "precision": "bf16-mixed"},
            r"trainer\.optimizer: with precision=bf16-mixed, .*; set fused: false",
        ),
        ({"synchronous_fraction": 0.5}, "trainer.synchronous_fraction is the part of a run before its local steps"),
        ({"local_steps": 4}, r"trainer.mesh=\[1, 1\] has one"),
        ({"local_steps": 4, "mesh": [2, 1], "sharded": True}, "trainer.local_steps and trainer.sharded exclude"),
        ({"local_steps": 4, "mesh": [2, 1], "compression": "fp16"}, "trainer.local_steps and trainer.compression excl"),
        ({"local_steps": 4, "mesh": [2, 1], "synchronous_fraction": 2}, "trainer.synchronous_fraction"),
        ({"compile": True, "activation_checkpointing": True}, "compile and trainer.activation_checkpointing exclude"),
        ({"sharded": True, "compression": "bf16"}, r"trainer\.compression and trainer\.sharded exclude each other"),
        ({"shard_ranks": 2}, r"trainer\.shard_ranks needs trainer\.sharded=true"),
        ({"sharded": True, "shard_ranks": 1}, r"trainer\.shard_ranks"),
        ({"loggers": ["tensorboard", "wandb"]}, r"loggers\[1\]=wandb needs the package wandb, which is not"),
        ({"loggers": ["mlfow"]}, r"loggers\[0\] must be one of tensorboard, mlflow, wandb, got 'mlfow'"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=sentence):
            TrainerOptions(**options)


def test_an_argument_of_the_user_wins_over_that_of_the_project():
    spec = {"_target_": "pytorch_lightning.profilers.SimpleProfiler"}
    for own, expected in (({}, "run"), ({"dirpath": "mine"}, "mine")):
        made = build_spec("trainer.lightning.profiler", spec | own, Profiler, given={"dirpath": "run", "unknown": 1})
        assert made.dirpath == expected
