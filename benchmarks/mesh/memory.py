"""How much memory a step takes, to the byte: what PyTorch's allocator gave out at most, and what it keeps for later."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile


def peak(work: Callable[[], object]) -> int:
    """Return by how many bytes what is allocated rises at most while `work` is done."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as seen:
        work()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def saved(forward: Callable[[], object]) -> int:
    """Return the bytes that `forward` keeps for the backward pass, memory that several share counted once."""
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        memory = x.untyped_storage()
        kept[memory.data_ptr()] = memory.nbytes()
        return x

    with saved_tensors_hooks(keep, lambda x: x):
        result = forward()
    del result
    return sum(kept.values())
