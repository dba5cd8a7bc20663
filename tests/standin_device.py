"""A stand-in for a GPU: PyTorch's device `standin:0`, whose values the CPU computes.

    install()
    x = torch.ones(3).to("standin")
    x + torch.ones(3)        # RuntimeError, as on a GPU: tensors of two devices
    with waits() as found:
        x.sum().item()       # found == {"_local_scalar_dense": 1}

Every operator goes through `_run`, which refuses tensors of several devices, computes on the CPU and counts what would
make the host wait for a GPU: values that Python reads, sizes that depend on values, copies that are not asynchronous.
So a program that gives here the numbers of the CPU has each tensor on the right device. Kernels, streams, memory, NCCL
and speed need a real GPU.

The device is for a whole process. Tests use it in a rank of their own: `run_on_ranks(1, ..., fresh=True)`.
"""

import traceback
from collections import Counter
from contextlib import contextmanager
from functools import partial

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "standin"
READING = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "argwhere", "bincount",
    "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
}  # fmt: skip
"""Operators whose value, or the size of whose result, the host must know."""
INDEXING = {"index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"}
FROM_CPP = {"aten::_copy_from"}
COPIES = {"copy_", "_copy_from", "_to_copy"}

found = Counter()
"""What would have made the host wait, since `install`."""
places = Counter()
"""The innermost lines of the project for each of them."""


class Held(torch.Tensor):
    """A tensor of the stand-in; its values are in `values`, a tensor on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), storage_offset=values.storage_offset(), dtype=values.dtype,
            device=torch.device(NAME, 0), requires_grad=requires_grad,
        )  # fmt: skip

    def __init__(self, values, requires_grad=False):
        self.values = values

    def __repr__(self):
        return f"Held({self.values!r})"

    def __reduce_ex__(self, protocol):
        """Files hold the values, so that they can be read on the CPU."""
        return self.values.detach().clone().__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        twin = Held(self.values.detach().clone(), self.requires_grad)
        twin.__dict__.update({name: value for name, value in self.__dict__.items() if name != "values"})
        return memo.setdefault(id(self), twin)

    def __format__(self, specification):
        return format(self.item() if self.ndim == 0 else repr(self), specification)

    def __setitem__(self, index, value):
        """A GPU gets an assigned number by a copy."""
        if not isinstance(value, torch.Tensor):
            _note("assigned number")
        super().__setitem__(index, value)

    def tolist(self):
        _note("tolist")
        return self.values.tolist()

    def numpy(self, *, force=False):
        raise TypeError(f"a tensor of {NAME} has no numpy array; copy it to the CPU first")

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


class Backend:
    """The functions of `torch.standin`."""

    def is_initialized(self):
        return True

    def is_available(self):
        return True

    def current_device(self):
        return 0

    def device_count(self):
        return 1

    def _is_in_bad_fork(self):
        return False

    def manual_seed_all(self, seed):
        """Random numbers are those of the CPU."""

    def get_rng_state(self, device=None):
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state, device=None):
        pass

    def get_amp_supported_dtype(self):
        return [torch.bfloat16]


def install():
    """Make the device known to PyTorch, for the rest of the process."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
    aten, every = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    every.fallback(lambda function, *args, **kwargs: _run(function, args, kwargs), "PrivateUse1")
    # The fallback does not get operators that PyTorch calls from C++ on a `Held`, such as the copy of `torch.tensor`.
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and name not in FROM_CPP and not _is_composite(name):
            base, _, overload = name.removeprefix("aten::").partition(".")
            try:
                function = getattr(getattr(torch.ops.aten, base), overload or "default")
            except AttributeError:
                continue
            aten.impl(function, partial(_called, function), "PrivateUse1")
    aten.impl("_copy_from", _copy_from, "PrivateUse1")
    _libraries.extend((aten, every))


_libraries = []
"""Registrations end with their objects."""


@contextmanager
def waits():
    """Yield a counter of what would make the host wait for a GPU inside the block."""
    before, counted = found.copy(), Counter()
    try:
        yield counted
    finally:
        counted.update(found - before)


def _run(function, args, kwargs):
    name = function._schema.name.partition("::")[2]
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    held = [tensor for tensor in tensors if isinstance(tensor, Held)]
    device = kwargs.get("device")
    device = torch.device(NAME if held else "cpu") if device is None else torch.device(device)
    if name in COPIES:
        _count_copy(name, tensors, device, args, kwargs)
    elif held:
        _count_reading(name, args, kwargs, function._overloadname)
        others = [tensor for tensor in tensors if not isinstance(tensor, Held) and tensor.ndim]
        if name in INDEXING:
            indices = {id(index) for index in args[1] if index is not None}
            if any(id(tensor) in indices for tensor in others):
                _note(f"{name} with an index on the CPU")
            others = [tensor for tensor in others if id(tensor) not in indices]
        if others:
            raise RuntimeError(f"{name} got tensors of {NAME} and of the CPU: {[tuple(t.shape) for t in tensors]}")
    owners = {}

    def values_of(leaf):
        if not isinstance(leaf, Held):
            return leaf
        owners[id(leaf.values)] = leaf
        return leaf.values

    plain_args, plain_kwargs = tree_map(values_of, (args, kwargs))
    if "device" in plain_kwargs:
        plain_kwargs = plain_kwargs | {"device": torch.device("cpu")}
    plain_kwargs.pop("pin_memory", None)

    def wrap(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if (owner := owners.get(id(leaf))) is None:
            return Held(leaf) if device.type == NAME else leaf
        if owner.shape != leaf.shape or owner.stride() != leaf.stride():
            raise NotImplementedError(f"{name} changes the shape of a tensor in place")
        return owner

    return tree_map(wrap, function(*plain_args, **plain_kwargs))


def _is_composite(name):
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def _called(function, *args, **kwargs):
    return _run(function, args, kwargs)


def _copy_from(source, target, non_blocking=False):
    return _run(torch.ops.aten.copy_.default, (target, source, non_blocking), {})


def _count_copy(name, tensors, device, args, kwargs):
    source, target = (tensors[1], tensors[0].device) if name == "copy_" else (tensors[0], device)
    if source.device.type == target.type:
        return
    asynchronous = kwargs.get("non_blocking", args[2] if name == "copy_" and len(args) > 2 else False)
    if target.type == "cpu":
        _note("copy to the CPU")
    elif not asynchronous and (source.ndim or name != "copy_"):
        _note("copy from the CPU")


def _count_reading(name, args, kwargs, overload):
    if name in READING or (name == "repeat_interleave" and overload in ("Tensor", "self_Tensor")):
        _note(name)
    if name in INDEXING and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        _note(f"{name} with a mask")


def _note(what):
    found[what] += 1
    lines = [frame for frame in traceback.extract_stack() if "/torch/" not in frame.filename][:-3]
    places[what, *(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in lines[-6:])] += 1
