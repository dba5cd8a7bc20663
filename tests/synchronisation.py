"""Counts operators that would make the host wait for a GPU, because Python needs their result or its shape."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "argwhere", "bincount",
    "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
}  # fmt: skip
INDEXING = {"index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"}


class Waits(TorchDispatchMode):
    """Counts, by name, the operators inside the block that make the host wait, and copies to a CPU."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name, _, overload = function._schema.name.partition("::")[2], 0, function._overloadname
        if name in WAITING or (name == "repeat_interleave" and overload in ("Tensor", "self_Tensor")):
            self.found[name] += 1
        if name in INDEXING and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
            self.found[f"{name} with a mask"] += 1
        result = function(*args, **kwargs)
        if name in ("_to_copy", "copy_"):
            source, target = (args[1], args[0]) if name == "copy_" else (args[0], result)
            if source.device.type != "cpu" and target.device.type == "cpu":
                self.found["copy to the CPU"] += 1
        return result
