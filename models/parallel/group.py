"""Group: ranks that talk to each other, known by the name that PyTorch gives them.

Nothing of ours holds a group itself: its threads live as long as anything does, and one that lets go of a tensor
while Python ends aborts the process (https://github.com/pytorch/pytorch/pull/179291).
"""

from __future__ import annotations

import gc

import torch.distributed as dist
from torch.distributed import ProcessGroup


def named(name: str) -> ProcessGroup:
    """Return the group of this name."""
    return dist.distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]


def end_groups() -> None:
    """End all groups and their threads: for `atexit`, when what a program held is let go but what goes in circles."""
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
