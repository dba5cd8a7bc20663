"""The memory plan: cost of a step, micro-batches that fit, refusals, and the plan of a resumed run."""

import itertools
import json
import math
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from ranks import run_on_ranks
from training_parts import SPECS, TASK, module

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.prefetch.budget import Budget
from data_pipeline.sample import Sample
from models.corrector import Corrector, needed_task, reads_moments
from models.parallel.mesh import Mesh, arrange_mesh
from training.memory import memory_plan, step_cost
from training.memory.memory_plan import MemoryPlan, plan_memory
from training.memory.step_cost import AllocationMeter, computed_bytes, measure_step
from training.network_training import warn_of_slow_bfloat16
from training.run.run_folder import MEMORY_PLAN
from training.run.trainer_options import TrainerOptions
from training.step.activation_checkpointing import checkpoint_activations
from training.step.correction_module import CorrectionModule
from training.step.training_data import open_training_data

PLAN = MemoryPlan(
    measured={}, pass_bytes=1100, seconds=1.0, weight_bytes=100, copies=2, sample_bytes=10, share=8, micro_batch=1
)
CPU, GRID = torch.device("cpu"), Grid.regular(9, 16)


def batch_of(name, count=1, grid=GRID):
    """A training module of a shipped network, and a batch, in single precision."""
    task = needed_task(SPECS[name], TASK)
    C, (H, W), M = len(task.channels), grid.shape, 2 if reads_moments(SPECS[name], TASK) else 5
    corrector = Corrector(task, grid, SPECS[name], torch.zeros(len(task.static_names), H, W))
    sample = Sample(
        280 + torch.randn(count, M, C, H, W), torch.ones(count, C, H, W, dtype=torch.bool),
        corrector.static.expand(count, -1, -1, -1), 280 + torch.randn(count, 1, H, W),
        10**9 + 86400 * torch.arange(count), torch.full((count,), 48),
    )  # fmt: skip
    return CorrectionModule(corrector).train(), sample


# Cost of a step.


def test_the_meter_counts_tensors_that_exist_at_the_same_time():
    with AllocationMeter() as meter:
        first = torch.ones(1000)
        second = first * 2  # 8,000 bytes
        del first
        view = second[10:]
        third = torch.cat([view, view])  # 4,000 and 7,920 bytes
    assert (meter.peak, meter.live) == (11_920, 11_920)
    del second, view
    assert meter.live == 7_920
    del third
    assert meter.live == 0


@pytest.mark.parametrize("name", ["ens10_unet", "transformer", "smoe_unet", "mlp"])
def test_computed_bytes_are_the_measured_ones(name):
    net, batch = batch_of(name)
    computed = computed_bytes(net, batch, nullcontext)
    assert computed == pytest.approx(measure_step(net, batch, nullcontext).nbytes, rel=0.01)


def test_bytes_grow_with_forecasts_and_fall_with_recomputation_and_bfloat16():
    grid = Grid.regular(33, 64)  # weights count little
    net, one = batch_of("unet", grid=grid)
    four = computed_bytes(net, batch_of("unet", 4, grid)[1], nullcontext)
    single = computed_bytes(net, one, nullcontext)
    assert four <= 4 * single <= 1.1 * four
    assert computed_bytes(net, one, partial(torch.autocast, "cpu", torch.bfloat16)) < 0.8 * single
    checkpoint_activations(net.corrector.model)
    assert computed_bytes(net, one, nullcontext) < 0.75 * single


def test_neither_way_changes_the_module_or_the_random_numbers():
    net, batch = batch_of("ens10_unet")
    before, state = {k: v.clone() for k, v in net.state_dict().items()}, torch.random.get_rng_state()
    computed_bytes(net, batch, nullcontext)
    measure_step(net, batch, nullcontext)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_on_a_gpu_the_pass_that_tries_algorithms_is_not_measured(monkeypatch):
    """The first pass takes 30 s and 400 bytes beside the weights' 20, each later one 1 s and 40 bytes."""
    passes, memory = iter([(30.0, 420), (1.0, 60), (1.0, 60)]), {"most": 20}

    def timed(*_):
        seconds, most = next(passes)
        memory["most"] = max(memory["most"], most)
        return seconds

    monkeypatch.setattr(step_cost, "_timed", timed)
    for name, function in {
        "reset_peak_memory_stats": lambda _: memory.update(most=20), "memory_allocated": lambda _: 20,
        "max_memory_allocated": lambda _: memory["most"],
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, function)
    on_gpu = SimpleNamespace(device=torch.device("cuda"), mesh=Mesh.single(), named_buffers=lambda: [])
    assert measure_step(on_gpu, None, nullcontext) == (40, 1.0)


def test_a_model_that_reads_values_has_no_computed_bytes(toy):
    net, batch = batch_of("unet")
    forward = net.corrector.model.forward
    net.corrector.model.forward = lambda sample: forward(sample) if sample.ensemble.sum().item() else None
    assert computed_bytes(net, batch, nullcontext) is None


# Micro-batches that fit.


def test_the_largest_even_micro_batches_that_fit_are_chosen():
    """A step on k forecasts takes 1.8 (100 + 1100 k) bytes, two copies of the weights, and four batches."""
    assert replace(PLAN, micro_batch=8).step_bytes == 1.8 * 8900 + 200 + 4 * 8 * 10
    for k, chosen in ((8, 8), (7, 4), (4, 4), (3, 3), (2, 2), (1, 1), (0, 1)):
        room = replace(PLAN, micro_batch=k).step_bytes
        assert PLAN.fitting(room).micro_batch == chosen
        assert chosen == 1 or PLAN.fitting(room - 1).micro_batch < k


def planned(toy, folder, mesh=None, spec="unet", room=None, **options):
    """The micro-batches of a run, with a given room for its steps."""
    net, train, val = module(toy, mesh or Mesh.single(), torch.float64, SPECS[spec], **options)
    if room is not None:
        memory_plan._room = lambda *_: room
    with open_training_data(train, val, Budget(), net.options, net.mesh) as data:
        return plan_memory(net.train(), data, nullcontext, CPU, folder)


@pytest.fixture
def planned_spec():
    return "unet"


@pytest.fixture
def step_memory(toy, tmp_path, monkeypatch, capsys, planned_spec):
    """A function that plans in a folder with a given room, and the bytes of a step by its micro-batches."""
    monkeypatch.setattr(memory_plan, "_room", memory_plan._room)
    planned(toy, tmp_path / "first", spec=planned_spec)
    plan = MemoryPlan(**json.loads((tmp_path / "first" / MEMORY_PLAN).read_text()))
    capsys.readouterr()
    return lambda k: replace(plan, micro_batch=k).step_bytes


def test_one_forecast_that_does_not_fit_is_refused_before_it_is_computed(toy, tmp_path, step_memory, monkeypatch):
    monkeypatch.setattr(memory_plan, "measure_step", None)
    with pytest.raises(InputError, match=r"needs .* of memory even with one forecast at a time.*activation_checkpoint"):
        planned(toy, tmp_path, room=step_memory(1) // 3)
    assert not (tmp_path / MEMORY_PLAN).exists()


@pytest.mark.parametrize("planned_spec", ["ens10_unet"])
def test_a_batch_that_cannot_be_divided_is_refused(toy, tmp_path, step_memory):
    with pytest.raises(InputError, match=r"cannot be divided, because the layer .*BatchNorm2d.* trainer.batch_size=\d"):
        planned(toy, tmp_path, spec="ens10_unet", room=step_memory(4))


def test_a_batch_that_does_not_fit_is_divided_and_a_resumed_run_keeps_its_parts(
    toy, tmp_path, step_memory, monkeypatch, capsys
):
    assert planned(toy, tmp_path, room=step_memory(3)) == 3
    line = capsys.readouterr().out
    assert "at most 3 forecasts are computed at a time, because all together need" in line
    text = (tmp_path / MEMORY_PLAN).read_text()
    with monkeypatch.context() as patch:
        patch.setattr(memory_plan, "measure_step", None)
        assert planned(toy, tmp_path, room=step_memory(8)) == 3
    assert (tmp_path / MEMORY_PLAN).read_text() == text
    assert planned(toy, tmp_path, room=step_memory(2)) == 2  # three no longer fit
    assert planned(toy, tmp_path, room=step_memory(8), activation_checkpointing=True) is None  # measured again


def test_a_damaged_plan_counts_as_none(tmp_path):
    file = tmp_path / MEMORY_PLAN
    assert memory_plan._read(file, {}) is None
    for text in ("", "[1]", '{"measured": {}}', '{"measured": {}, "sha'):
        file.write_text(text)
        assert memory_plan._read(file, {}) is None
        file.write_text(json.dumps(asdict(PLAN)))
        assert memory_plan._read(file, PLAN.measured) == PLAN


def test_the_option_limits_the_process_and_its_caches(toy, monkeypatch):
    monkeypatch.setattr(memory_plan, "process_memory", lambda: 3_000)
    net, train, val = module(toy, Mesh.single(), torch.float32, memory="10 kB")
    with open_training_data(train, val, Budget(), net.options, net.mesh) as data:
        to_come = data.train_batches.bytes_to_come + data.val_batches.bytes_to_come
        assert to_come == (17 * data.train.nbytes + 10 * data.train.nbytes)
        data.train[0]
        assert data.train_batches.bytes_to_come == 16 * data.train.nbytes
        room = memory_plan._room(net.options, net.mesh, data, CPU)
        assert room == 7_000 - to_come + data.train.nbytes


def test_without_caches_the_staging_buffer_counts(toy):
    net, train, val = module(toy, Mesh.single(), torch.float32)
    budget = Budget(memory_bytes=0, staging_bytes=6 * (train.nbytes + 10_000))
    with open_training_data(train, val, budget, net.options, net.mesh) as data:
        slots = 3 * (train.nbytes + 10_000) // data.train.nbytes
        assert data.train_batches.bytes_to_come == slots * data.train.nbytes


def planned_on_rank(rank, toy, folder):
    """Plan twice; a pass is short for the first rank and long for the other, as if it took as long as the limit."""
    with (
        patch.object(memory_plan, "_room", lambda *_: 10**12 if rank else 10**9),
        patch.object(step_cost, "SHORT_PASS", 0.0 if rank else math.inf),
    ):
        return [planned(toy, folder, arrange_mesh(1, 2)) for _ in range(2)]


def test_all_ranks_have_one_plan(toy, tmp_path):
    assert run_on_ranks(2, planned_on_rank, toy, tmp_path, timeout=60) == [[None, None]] * 2
    assert json.loads((tmp_path / MEMORY_PLAN).read_text())["share"] == 8


# bfloat16.


def test_bfloat16_without_instructions_for_it_warns(monkeypatch, capsys):
    for able, precision, device in itertools.product((True, False), ("bf16-mixed", "32-true"), ("cpu", "cuda")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda able=able: {"avx2": True, "avx512_bf16": able})
        warn_of_slow_bfloat16(TrainerOptions(precision=precision), torch.device(device))
        warned = "set trainer.precision=32-true" in capsys.readouterr().out
        assert warned == ((able, precision, device) == (False, "bf16-mixed", "cpu"))
