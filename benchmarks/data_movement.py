"""Bytes that a training step moves between memory and processor, compared with the least; 361 x 720, one forecast.

The count is the sum of all tensors that operators read and write. Tensors of less than 1 MiB stay in a core's cache and
do not count. An operator of this project that works in blocks, such as attention among members, counts as one.

The *least* is what remains if all other operators are fused into convolutions across channels, matrix products and
attention: these read and write each of their tensors once (Ivanov et al. 2021, arXiv:2007.00072). Sizes of tensors
suffice, so nothing is computed, and the count is the same on every machine.

    python -m benchmarks.data_movement [--json] [--models unet transformer]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.common import HALF_DEGREE, command_line, report
from benchmarks.mesh.training_step import TrainingStep
from benchmarks.step import OURS, PEERS, PLAIN
from benchmarks.step_memory import network_names, random_batch, shipped_corrector
from models.parallel.mesh import Mesh
from training.memory.step_cost import pass_without_values
from training.step.correction_module import CorrectionModule

CACHED_BYTES = 2**20
"""Tensors with less memory than this are counted as cached."""
CONTRACTIONS = ("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm", "attend", "attend_backward")
UNREAD = ("copy_", "fill_", "zero_")
"""Operators that write their first tensor without reading it."""


class TrafficMeter(TorchDispatchMode):
    """Inside the block, counts the bytes that each operator reads and writes; `least` is the sum for contractions."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: Counter[str] = Counter()
        self.least = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count its tensors."""
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        name = function.overloadpacket.__name__
        if not _moves_nothing(name, found, args):
            read = {key: value for key, value in kwargs.items() if key != "out"}
            parts = tree_leaves((args[1:] if name in UNREAD else args, read, found))
            nbytes = sum(map(_moved_bytes, parts))
            self.moved[name] += nbytes
            if name in CONTRACTIONS and not _by_channel(name, args):
                self.least += nbytes
        return found


def _moves_nothing(name: str, found: Any, args: Any) -> bool:
    """Return whether an operator only makes a view, or memory without values."""
    results = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
    if name.startswith(("empty", "new_empty")) or not results:
        return True
    given = {each.untyped_storage()._cdata for each in tree_leaves(args) if isinstance(each, Tensor)}
    return not name.endswith("_") and all(each.untyped_storage()._cdata in given for each in results)


def _by_channel(name: str, args: Any) -> bool:
    """Return whether a convolution treats each channel by itself, so that it could be fused like any other operator."""
    groups = {"convolution": 8, "convolution_backward": 9}.get(name)
    return groups is not None and args[groups] > 1 and args[groups] == args[0].shape[1]


def _moved_bytes(x: Any) -> int:
    """Return the bytes of a tensor, at most the bytes of its storage; 0 for cached tensors and for numbers."""
    if not isinstance(x, Tensor) or (memory := x.untyped_storage().nbytes()) < CACHED_BYTES:
        return 0
    return min(x.numel() * x.element_size(), memory)


def count_step(name: str, model: nn.Module | None = None) -> TrafficMeter:
    """Return the bytes of a step of a network of `conf/model/`, or of `model` with the input of the U-Net."""
    meter = TrafficMeter()
    if model is not None:
        step = TrainingStep(Mesh.single(), HALF_DEGREE)
        step.module.corrector.model = model
        pass_without_values(step.module, step.batch, nullcontext, meter)
        return meter
    corrector = shipped_corrector(name)
    pass_without_values(CorrectionModule(corrector).train(), random_batch(corrector), nullcontext, meter)
    return meter


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and the ratios."""
    parser = command_line(__doc__)
    parser.add_argument("--models", nargs="+", help="names of conf/model; by default all networks and plain ones")
    options = parser.parse_args(arguments)
    meters = {name: count_step(name) for name in options.models or network_names()}
    if not options.models:
        for name, make in PLAIN.items():
            meters[f"{name}, 11 inputs"] = count_step(name, OURS[name](HALF_DEGREE))
            for kind, padding in PEERS.items():
                meters[f"{name}, plain torch.nn, {kind}"] = count_step(name, make(HALF_DEGREE, padding))
    print("| network | moved | least | ratio | most of the rest |\n|---|---|---|---|---|")
    for label, meter in meters.items():
        rest = Counter({op: n for op, n in meter.moved.items() if op not in CONTRACTIONS}).most_common(3)
        most = ", ".join(f"{op} {n / 1e9:.2f} GB" for op, n in rest)
        moved = meter.moved.total()
        print(f"| {label} | {moved / 1e9:.2f} GB | {meter.least / 1e9:.2f} GB | {moved / meter.least:.2f} | {most} |")
    report("data_movement", {
        label.replace(", ", "_").replace(" ", "_"): meter.moved.total() / meter.least for label, meter in meters.items()
    }, options.json)  # fmt: skip


if __name__ == "__main__":
    main()
