"""Training steps and scores on a GPU, compared with plain `torch.nn`, with PyTorch's operators and with the bandwidth.

A step has 8 forecasts of 361 x 720 points: loss, gradients, clipping and AdamW, with the layers of `deepweather train`,
in bfloat16 (`bf16-mixed`) and in TF32 (`matmul_precision=high`). Its peers, in the same run:

- `plain`: the same network of plain `torch.nn`, with circular padding in longitude;
- `operators`: the same step without the kernels of `models/layers/kernels`, channels first, as before them;
- `any_order`: the same step, in which cuDNN may add up gradients in any order.

Losses of the networks after 25 steps on 4 forecasts of 91 x 180 points are compared with those in float32.

Scores of a case are CRPS, fair CRPS, error, variance and rank of 8 forecasts; the limit is one reading of the members
at the speed of a copy on the device. Times are medians between events of the GPU.

    python -m benchmarks.gpu [--json] [--rounds 10] [--rows 361]
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import torch

from benchmarks.common import command_line, report
from benchmarks.mesh.training_step import TrainingStep
from benchmarks.step import OURS, PLAIN
from benchmarks.step_memory import random_batch, shipped_corrector
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from evaluation.scores.case import Case
from models.distribution import Ensemble
from models.layers.kernels import choice
from models.parallel import memory_format
from models.parallel.mesh import Mesh
from training.network_training import matmul_precision
from training.optimization.optimizer import decay_groups, make_optimizer
from training.step.correction_module import CorrectionModule

FORECASTS = 8
STEPS = 25
"""Steps before losses are compared."""
NETWORKS = ("mlp", "lenet", "unet", "ens10_unet", "transformer", "smoe_unet", "poet", "deep_weather")
WARM_UP = 4
"""Calls that are not measured: kernels are compiled."""


class Step:
    """One training step as in the loop of Lightning, without its callbacks."""

    def __init__(self, module: CorrectionModule, batch: Sample) -> None:
        self.module, self.batch = module.cuda().train(), Sample(*(tensor.cuda() for tensor in batch))
        groups = decay_groups(module.corrector.model, 1e-2, module.corrector.grid.shape)
        self.weights = [weight for group in groups for weight in group["params"]]
        self.optimizer = make_optimizer(None, groups, 1e-4)

    def __call__(self) -> torch.Tensor:
        """Train and return the loss."""
        self.optimizer.zero_grad()
        loss = self.module.training_step(self.batch, 0)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        return loss.detach()


def fields_step(name: str, kind: str, grid: Grid) -> Step:
    """Return a step of a network on mean and spread of 11 fields."""
    step = TrainingStep(Mesh.single(), grid)
    step.module.corrector.model = PLAIN[name](grid, "sphere") if kind == "plain" else OURS[name](grid)
    return Step(step.module, Sample(*(torch.cat([tensor] * FORECASTS) for tensor in step.batch)))


def transformer_step(grid: Grid) -> Step:
    """Return a step of the transformer over 10 members, on a quarter of the forecasts."""
    corrector = shipped_corrector("transformer", grid, baseline=None)
    return Step(CorrectionModule(corrector), random_batch(corrector, FORECASTS // 4))


def median_ms(work: Callable[[], object], rounds: int) -> float:
    """Return the median milliseconds of `work` on the GPU."""
    for _ in range(WARM_UP):
        work()
    times = []
    for _ in range(rounds):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return statistics.median(times)


@contextmanager
def former_layers() -> Iterator[None]:
    """Inside the block layers and scores have no kernels, and their channels are not last."""
    with patch.object(choice, "works", lambda: False), patch.object(memory_format, "channels_go_last", lambda x: False):
        yield


def step_ratios(grid: Grid, rounds: int) -> dict[str, float]:
    """Return the times of steps, compared with their peers."""
    ratios = {}
    for name in (*OURS, "transformer"):
        for precision in ("bf16", "tf32"):
            times = {}
            for kind in ("ours", "operators", "plain", "any_order"):
                if kind == "plain" and name == "transformer":
                    continue
                torch.manual_seed(0)
                with (
                    former_layers() if kind in ("operators", "plain") else nullcontext(),
                    matmul_precision("high", torch.device("cuda")),
                    torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"),
                ):
                    torch.backends.cudnn.deterministic = kind != "any_order"
                    step = transformer_step(grid) if name == "transformer" else fields_step(name, kind, grid)
                    times[kind] = median_ms(step, rounds)
                del step
                gc.collect()
                torch.cuda.empty_cache()
            print(f"{name:<12} {precision} " + ", ".join(f"{k} {ms:.1f} ms" for k, ms in times.items()), flush=True)
            ratios |= {
                f"{name}_{precision}_vs_{kind}": times["ours"] / ms for kind, ms in times.items() if kind != "ours"
            }
    return ratios


def loss_ratios(grid: Grid) -> dict[str, float]:
    """Return the losses of networks after some steps in TF32 and bfloat16, compared with those in float32."""
    ratios = {}
    for name in NETWORKS:
        losses = {}
        for kind, precision in (("float32", "highest"), ("tf32", "high"), ("bf16", "high")):
            with matmul_precision(precision, torch.device("cuda")):
                torch.manual_seed(0)
                corrector = shipped_corrector(name, grid)
                step = Step(CorrectionModule(corrector), random_batch(corrector, 4))
                torch.manual_seed(1)
                with torch.autocast("cuda", torch.bfloat16, enabled=kind == "bf16"):
                    losses[kind] = float([step() for _ in range(STEPS)][-1])
        print(f"{name:<12} " + ", ".join(f"{kind} {loss:.4f}" for kind, loss in losses.items()), flush=True)
        ratios |= {f"{name}_loss_{kind}": losses[kind] / losses["float32"] for kind in ("tf32", "bf16")}
    assert all(map(math.isfinite, ratios.values()))
    return ratios


def score_ratios(grid: Grid, rounds: int) -> dict[str, float]:
    """Return the times of scores, compared with reading the members and with PyTorch's operators."""
    source = torch.rand(2**28, device="cuda")
    target, ratios = torch.empty_like(source), {}
    bytes_per_ms = 2 * source.nbytes / median_ms(lambda: target.copy_(source), rounds)
    print(f"copies move {bytes_per_ms / 1e9:.2f} TB/s", flush=True)
    for members in (10, 50):
        shape = FORECASTS, 1, *grid.shape
        x = 280 + 5 * torch.randn(members, *shape, device="cuda")
        truth, uniform = 280 + 5 * torch.randn(shape, device="cuda"), torch.rand(shape, device="cuda")

        def score(x: torch.Tensor = x, truth: torch.Tensor = truth, uniform: torch.Tensor = uniform) -> object:
            case = Case(Ensemble(x), truth, uniform, len(x) + 1)
            return case.crps, case.crps_fair, case.error, case.expected_squared_error, case.bin

        ms = median_ms(score, rounds)
        with former_layers():
            former = median_ms(score, rounds)
        ratios[f"score_{members}_vs_limit"] = ms / ((x.nbytes + truth.nbytes) / bytes_per_ms)
        ratios[f"score_{members}_vs_operators"] = ms / former
    return ratios


def main(arguments: Sequence[str] | None = None) -> None:
    """Time steps and scores and print the ratios."""
    parser = command_line(__doc__, rounds=10, rows=361)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU, which this benchmark measures; `python -m benchmarks.step` measures a CPU")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    grid = Grid.regular(options.rows, 2 * (options.rows - 1))
    ratios = step_ratios(grid, options.rounds) | score_ratios(grid, options.rounds)
    report("gpu", ratios | loss_ratios(Grid.regular(91, 180)), options.json)


if __name__ == "__main__":
    main()
