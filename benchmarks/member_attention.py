"""Attention among the members in each cell: time and memory, compared with PyTorch's own operators.

The peer is the same layer made of PyTorch's layer normalisation, linear layers and `scaled_dot_product_attention`. Both
compute a forward and a backward pass on one thread: 10 members on 361 x 720 points, 50 members on 91 x 180.

    python -m benchmarks.member_attention [--json]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.common import best_times, command_line, memory_rise, report
from models.layers.attention import MemberAttention

CASES = {"10_members": (10, 361, 720), "50_members": (50, 91, 180)}
CHANNELS, HEADS, ROUNDS = 8, 1, 3


def layer_and_field(case: str) -> tuple[MemberAttention, Tensor]:
    """Return a layer with random weights and the members' maps of one forecast."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layer = MemberAttention(CHANNELS, HEADS)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    members, rows, columns = CASES[case]
    return layer, torch.randn(members, CHANNELS, rows, columns, requires_grad=True)


def one_pass(case: str, ours: bool) -> Callable[[], None]:
    """Return a function that computes a forward and a backward pass, of this project's layer or of the peer."""
    layer, x = layer_and_field(case)
    forward = layer.forward if ours else layer.in_standard_operators
    members, gradient = CASES[case][0], torch.ones_like(x)

    def work() -> None:
        x.grad = None
        forward(x, members).backward(gradient)

    return work


def first_pass(case: str, ours: bool) -> None:
    """Compute one pass, for its memory."""
    one_pass(case, ours)()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print time and memory of the layer, divided by time and memory with PyTorch's operators."""
    options = command_line(__doc__).parse_args(arguments)
    ratios = {}
    for case in CASES:
        works = {"ours": one_pass(case, ours=True), "standard": one_pass(case, ours=False)}
        seconds = best_times(works, ROUNDS, time.process_time)
        rises = {name: memory_rise(first_pass, case, name == "ours") for name in works}
        for name in works:
            print(f"{case:<12} {name:<10} {seconds[name]:6.2f} CPU s {rises[name] / 1e9:6.2f} GB")
        ratios[f"time_{case}"] = seconds["ours"] / seconds["standard"]
        ratios[f"memory_{case}"] = rises["ours"] / rises["standard"]
    report("member_attention", ratios, options.json)


if __name__ == "__main__":
    main()
