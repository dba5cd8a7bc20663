"""Training of a network by gradient descent, with Lightning; the weights with the lowest validation loss are kept."""

from __future__ import annotations

import copy
import logging
import math
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn

from data_pipeline.common import interruption
from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.messages import warn
from data_pipeline.common.progress import Progress
from models.device import watch_gpu
from models.parallel.mesh import Mesh
from training.memory.memory_plan import plan_memory
from training.optimization.specs import build_spec
from training.run.checkpoints import Checkpoints
from training.run.cost_callback import CostCallback
from training.run.history import LossHistory
from training.run.loggers import make_loggers
from training.run.pruning import PruningOptions
from training.run.pruning_callback import Pruning
from training.run.run_summary import RunSummary
from training.run.trainer_options import TrainerOptions
from training.run.training_progress import TrainingProgress
from training.step.activation_checkpointing import checkpoint_activations
from training.step.correction_module import CorrectionModule
from training.step.curve_restart import CurveRestart
from training.step.local_steps import LocalSteps, check_local_steps
from training.step.mesh_strategy import mesh_trainer_flags
from training.step.training_data import TrainingData
from training.step.weight_average import WeightAverage, validated_weights

EXPECTED_WARNINGS = (
    "does not have many workers",
    "Checkpoint directory",
    "log_every_n",
    "LeafSpec",
    "sync_dist",
    "The `srun`",
    "in eval mode at the start",
)
"""Warnings of Lightning and PyTorch about intended behaviour."""


def train_network(
    module: CorrectionModule, data: TrainingData, run_dir: Path, summary: RunSummary | None = None
) -> torch.device:
    """Train `module` by gradient descent, or resume from the last checkpoint, and load the best weights into it.

    Returns the device of the training, on which the module stays. `summary` records the phases and validations.
    """
    options, mesh, val_batches = module.options, module.mesh, data.val_batches
    assert val_batches is not None, "networks need validation"
    for noisy in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.accelerators.cuda"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for expected in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=f".*{expected}")
    if options.local_steps > 1:
        check_local_steps(module.corrector.model)
    checkpoints = Checkpoints(run_dir / "checkpoints", options.checkpoint_minutes, mesh, summary)
    cost, train = [], data.train_batches
    if summary is not None:
        cost.append(CostCallback(summary, len(data.train), options.batch_size, lambda: train.waited))
    trainer = make_trainer(options, mesh, checkpoints, run_dir, cost)
    device = trainer.strategy.root_device
    if summary is not None:
        watch_gpu(summary.meter, device)
    resumed = mesh.run_on_first(checkpoints.to_resume)
    if resumed:
        trainer.num_sanity_val_steps = 0  # the loss of the initial weights is in the checkpoint
    # The copy may be sharded while it is trained; `module` holds full weights.
    trained = copy.deepcopy(module)
    if options.activation_checkpointing:
        checkpoint_activations(trained.corrector.model)
    warn_of_slow_bfloat16(options, device)
    autocast = trainer.precision_plugin.forward_context
    for batches in (data.train_batches, val_batches):
        batches.pin = device.type == "cuda"
    with matmul_precision(options.matmul_precision, device):
        module.micro_batch = trained.micro_batch = plan_memory(trained, data, autocast, device, run_dir)
        if options.compile:
            compile_model(trained.corrector.model, device, mesh, options.sharded)
        _fit(trainer, trained, data, checkpoints, resumed)
    mesh.run_on_first(lambda: checkpoints.previous.unlink(missing_ok=True))
    # On the CPU, the final validation could take longer than the training on a GPU.
    module.to(device)
    if mesh.run_on_first(checkpoints.best.exists):
        module.load_state_dict(validated_weights(torch.load(checkpoints.best, weights_only=True, map_location="cpu")))
    if warning := check_validation_losses(checkpoints.start, checkpoints.lowest, checkpoints.latest):
        warn(f"warning: {warning}")
    return device


def _fit(
    trainer: pl.Trainer, trained: CorrectionModule, data: TrainingData, checkpoints: Checkpoints, resumed: Path | None
) -> None:
    """Let Lightning train, and raise its errors as errors of the input."""
    try:
        with interruption.deferred() as checkpoints.deferral:
            trainer.fit(
                trained,
                data.train_batches,
                data.val_batches,
                ckpt_path=str(resumed) if resumed else None,
                weights_only=True,
            )
    except SystemExit:
        # Lightning raises SystemExit after an interrupt.
        if not trainer.interrupted:
            raise
        raise InterruptedRunError(
            f"interrupted in epoch {trainer.current_epoch + 1}; run the same command again to resume"
        ) from None
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the memory of the GPU does not suffice ({str(error).splitlines()[0]}); set trainer.memory to less than "
            "the GPU has, so that fewer forecasts are computed at a time"
        ) from error
    except MisconfigurationException as error:
        raise InputError(f"Lightning's Trainer cannot run with these options of trainer: {error}") from error
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{resumed} holds objects other than tensors and numbers, from a callback or scheduler of "
            "trainer, and is not loaded; leave out that callback or scheduler and use another run_dir"
        ) from error


def check_validation_losses(initial: float, lowest: float, latest: float) -> str:
    """Return a warning if training did not improve the initial weights, "" otherwise; raise if it diverged.

    The arguments are validation losses: `initial` of the initial weights, `lowest` of the best weights (including the
    initial ones), `latest` of the last epoch.
    """
    remedy = "a lower trainer.learning_rate or trainer.gradient_clip may help"
    if lowest < initial:
        return "" if math.isfinite(latest) else f"the validation loss became {latest}; an earlier epoch is kept"
    if not latest <= 2 * initial:
        raise InputError(
            f"training diverged: the validation loss went from {initial:.4g} to {latest:.4g}, and no epoch was better "
            f"than the initial weights, so no corrector is saved; {remedy} (in another run_dir)"
        )
    return (
        f"no epoch has a lower validation loss than the initial weights ({initial:.4g}, last epoch {latest:.4g}), "
        f"so the corrector is saved with the initial weights; {remedy}"
    )


def make_trainer(
    options: TrainerOptions, mesh: Mesh, checkpoints: Checkpoints, run_dir: Path, further: Sequence[pl.Callback] = ()
) -> pl.Trainer:
    """Return Lightning's Trainer with the project's callbacks and the callbacks, loggers and flags of the options.

    `further` callbacks run before those of the options.
    """
    stopping = EarlyStopping("val_loss", patience=options.patience, stopping_threshold=options.early_stop_below)
    averages = [WeightAverage(options.ema_decay)] if options.ema_decay else []
    pruning = (
        [] if (spec := options.pruning) is None else [Pruning(PruningOptions.of(spec), run_dir, checkpoints, mesh)]
    )
    local_steps = []
    if options.local_steps > 1:
        fraction = 0.5 if options.synchronous_fraction is None else options.synchronous_fraction
        local_steps = [LocalSteps(mesh, options.local_steps, fraction, averages[0] if averages else None)]
    callbacks = [
        build_spec(f"trainer.callbacks[{index}]", spec, pl.Callback) for index, spec in enumerate(options.callbacks)
    ]
    flags = {name: _flag_value(f"trainer.lightning.{name}", value) for name, value in (options.lightning or {}).items()}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    try:
        trainer = pl.Trainer(
            max_epochs=options.epochs, accelerator=_accelerator(options, mesh), **mesh_trainer_flags(mesh, options),
            precision=options.precision, gradient_clip_val=options.gradient_clip,
            accumulate_grad_batches=options.accumulate_grad_batches,
            callbacks=[
                TrainingProgress(), checkpoints, stopping, *local_steps, *averages, *further, *callbacks, *pruning,
                LossHistory(run_dir / "metrics.csv"),
                CurveRestart(),
            ],
            logger=make_loggers(["tensorboard"] if options.loggers is None else options.loggers, run_dir, mesh.first),
            default_root_dir=run_dir, num_sanity_val_steps=-1, **(quiet | flags),
        )  # fmt: skip
    except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
        asked = f"trainer.accelerator={options.accelerator} with precision={options.precision}"
        asked += f" and lightning={dict(options.lightning)}" if options.lightning else ""
        raise InputError(f"{asked} is not available here: {error}") from None
    disable_signal_handling(trainer)
    return trainer


def _accelerator(options: TrainerOptions, mesh: Mesh) -> str:
    """Return the accelerator; `auto` is the CPU where this machine has fewer GPUs than ranks, as in `evaluate`."""
    lacking = torch.cuda.is_available() and torch.cuda.device_count() < mesh.local_ranks
    return "cpu" if options.accelerator == "auto" and lacking else options.accelerator


def disable_signal_handling(trainer: pl.Trainer) -> None:
    """Stop Lightning from replacing the signal handlers, and from asking all ranks for signals before every step.

    Lightning's message waits for the GPU in every step; `Checkpoints` exchanges this message between CPUs. The methods
    are private: a test fails if a version of Lightning no longer has them.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


def warn_of_slow_bfloat16(options: TrainerOptions, device: torch.device) -> None:
    """Print a warning if layers compute in bfloat16 on a CPU that has no instructions for it."""
    fast = any(value is True for name, value in torch.cpu.get_capabilities().items() if "bf16" in name)
    if options.precision == "bf16-mixed" and device.type == "cpu" and not fast:
        warn(
            "warning: trainer.precision=bf16-mixed is slower than 32-true on this CPU, which has no instructions for "
            "bfloat16 (4.7 times slower where this was measured); set trainer.precision=32-true"
        )


@contextmanager
def matmul_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Inside the block, a GPU multiplies float32 in `precision`: `highest` is float32, `high` TF32, `medium` bfloat16.

    cuDNN's convolutions get the same setting: PyTorch's default for them is TF32, also with `highest` products. Their
    gradients add up in a fixed order, so that a resumed run is the same run. Nothing changes on CPUs.
    """
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic
    try:
        if device.type == "cuda":
            torch.set_float32_matmul_precision(precision)
            cudnn.allow_tf32, cudnn.deterministic = precision != "highest", True
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.deterministic = before[1:]


def _flag_value(option: str, value: Any) -> Any:
    """Return the value of a flag of the Trainer, with objects in place of specs."""
    if isinstance(value, list):
        return [_flag_value(option, inner) for inner in value]
    return build_spec(option, value, object) if isinstance(value, Mapping) and "_target_" in value else value


def compile_model(model: nn.Module, device: torch.device, mesh: Mesh, sharded: bool) -> None:
    """Make PyTorch compile a model at its first call; raise if there is no working compiler."""
    if mesh.tiles > 1 or sharded:
        raise InputError(
            "trainer.compile=true may change the order of messages between ranks; use trainer.mesh=[N,1] and "
            "trainer.sharded=false, or set compile=false"
        )
    # The compiler logs many lines about code that it does not compile.
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    try:
        with Progress("trial of the compiler"):
            torch.compile(lambda x: x + 1)(torch.zeros(2, device=device))
    except Exception as error:  # each backend raises its own classes
        why = str(error).strip().splitlines()[0]
        raise InputError(
            f"trainer.compile=true needs a working compiler, g++ for CPUs and Triton for GPUs ({why}); "
            "install it, or set trainer.compile=false"
        ) from None
    model.compile()
