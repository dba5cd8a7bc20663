"""Options of the trainer that are refused before data are read, with the option, its value and the way out."""

import pytest
from pytorch_lightning.profilers import Profiler

from data_pipeline.common.errors import InputError
from training.optimization.specs import build_spec
from training.run.trainer_options import TrainerOptions

TORCH = "torch.optim.lr_scheduler"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epochs", 0), ("epochs", "three"), ("learning_rate", -1.0), ("precision", "8"), ("batch_size", True),
        ("seed", -1), ("weight_decay", 1.5), ("accelerator", "tpu"), ("checkpoint_minutes", 0), ("gradient_clip", 0),
        ("ema_decay", 1.0), ("compile", 1), ("activation_checkpointing", "yes"), ("matmul_precision", "low"),
        ("profiler", "fast"), ("local_steps", 0),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_with_its_value(option, value):
    with pytest.raises(InputError, match=rf"trainer.{option} must be .*, got {value!r}"):
        TrainerOptions(**{option: value})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
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
    ],
    ids=lambda of: "",
)  # fmt: skip
def test_options_that_cannot_be_are_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        TrainerOptions(**options)


def test_an_argument_of_the_user_wins_over_that_of_the_project():
    spec = {"_target_": "pytorch_lightning.profilers.SimpleProfiler"}
    for own, expected in (({}, "run"), ({"dirpath": "mine"}, "mine")):
        made = build_spec("trainer.profiler", spec | own, Profiler, given={"dirpath": "run", "unknown": 1})
        assert made.dirpath == expected
