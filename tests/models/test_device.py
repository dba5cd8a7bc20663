"""The option `device`, the settings of a GPU, and copies in a stream of their own; GPUs are doubles."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.sample import Sample
from models import device as device_module
from models.device import choose_device, copy_batch
from models.parallel.single_process import SingleProcess


def ranks(local_rank, local_ranks, others=()):
    """A mesh whose other machines lack GPUs as `others` say."""
    return SimpleNamespace(
        ranks=4, local_rank=local_rank, local_ranks=local_ranks, gather=lambda value: [value, *others],
        broadcast=lambda value: value,
    )  # fmt: skip


@pytest.fixture
def gpus(monkeypatch):
    """A function that makes PyTorch find some GPUs; the chosen one is in its `current`."""

    def make(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    make.current = []
    monkeypatch.setattr(torch.cuda, "set_device", make.current.append)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    return make


@pytest.mark.parametrize(
    ("option", "mesh", "count", "expected"),
    [
        ("cpu", SingleProcess(), 1, "cpu"), ("auto", SingleProcess(), 1, "cuda:0"), ("auto", SingleProcess(), 0, "cpu"),
        ("gpu", SingleProcess(), 2, "cuda:0"), ("auto", ranks(1, 2), 2, "cuda:1"), ("gpu", ranks(3, 4), 4, "cuda:3"),
        ("auto", ranks(0, 2), 1, "cpu"), ("auto", ranks(0, 2, [(0, 2)]), 2, "cpu"),
    ],
)  # fmt: skip
def test_the_chosen_device(option, mesh, count, expected, gpus):
    gpus(count)
    device = choose_device(option, mesh)
    assert device == torch.device(expected)
    assert gpus.current == ([device] if device.type == "cuda" else [])
    on_gpu = device.type == "cuda"
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32) == (not on_gpu, not on_gpu)


@pytest.mark.parametrize(
    ("option", "mesh", "count", "message"),
    [
        ("gpu", SingleProcess(), 0, "device=gpu, but PyTorch finds no usable GPU; set device=cpu"),
        ("gpu", ranks(0, 4), 2, "device=gpu needs a GPU for each rank, and a machine has 2 for 4 ranks; set a smaller"),
        ("gpu", ranks(0, 2, [(1, 2)]), 2, "device=gpu needs a GPU for each rank, and a machine has 1 for 2 ranks"),
        ("cuda", SingleProcess(), 1, "device must be one of auto, cpu, gpu, got 'cuda'"),
    ],
)
def test_an_impossible_device_is_an_error(option, mesh, count, message, gpus):
    gpus(count)
    with pytest.raises(InputError, match=f"^{message}"):
        choose_device(option, mesh)


def test_a_batch_is_copied_in_a_stream_that_later_kernels_wait_for(monkeypatch):
    log, current = [], ["main"]

    class Field:
        """A double of a tensor, which notes in which stream it is copied."""

        def __init__(self, name):
            self.name = name

        def to(self, device, non_blocking=False):
            log.append(f"{self.name} copied to {device} in {current[-1]}" + " and waits" * (not non_blocking))
            return self

        def record_stream(self, stream):
            log.append(f"{self.name} used in {stream.name}")

    @contextmanager
    def inside(stream):
        current.append(stream)
        yield
        current.pop()

    main = SimpleNamespace(name="main", wait_stream=lambda stream: log.append(f"main waits for {stream}"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"a stream of {device}")
    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    device_module._copy_stream.cache_clear()
    copy_batch(Sample(*map(Field, Sample._fields)), "cuda:1")
    device_module._copy_stream.cache_clear()
    assert log[:6] == [f"{name} copied to cuda:1 in a stream of cuda:1" for name in Sample._fields]
    assert log[6:] == ["main waits for a stream of cuda:1", *(f"{name} used in main" for name in Sample._fields)]
