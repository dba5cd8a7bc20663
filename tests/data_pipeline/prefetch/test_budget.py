"""Options of the cache: refused values, and their division among data sets."""

import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.common.machine_memory import total_memory
from data_pipeline.common.threads import BUDGET
from data_pipeline.prefetch import budget as module
from data_pipeline.prefetch.budget import Budget, describe_budget, machine_budget


@pytest.mark.parametrize(
    ("option", "value", "least"),
    [
        ("staging_bytes", 0, 1),
        ("memory_bytes", -1, 0),
        ("disk_bytes", 1e9, 0),
        ("threads", 0, 1),
        ("memory_bytes", "4 GB", 0),
    ],
)
def test_a_wrong_number_is_refused(option, value, least):
    with pytest.raises(InputError, match=rf"data\.cache\.{option} must be a whole number of at least {least}, got"):
        Budget(**{option: value})


def test_disk_bytes_and_disk_folder_need_each_other():
    with pytest.raises(InputError, match=r"data\.cache\.disk_bytes is 5 but .* set it to a folder"):
        Budget(disk_bytes=5)
    with pytest.raises(InputError, match=r"data\.cache\.disk_folder is /scratch but .* set data\.cache\.disk_bytes"):
        Budget(disk_folder="/scratch")


def test_divided_bytes_add_up_to_at_most_the_budget():
    budget = Budget(staging_bytes=1001, memory_bytes=999, disk_bytes=100, disk_folder="/scratch")
    parts = budget.divide([700, 200, 1])
    for name in ("memory_bytes", "disk_bytes"):
        assert sum(getattr(part, name) for part in parts) <= getattr(budget, name)
    assert [part.staging_bytes for part in parts] == [333] * 3
    assert [part.memory_bytes for part in parts] == [776, 221, 1]
    disks = [(part.disk_bytes, part.disk_folder) for part in parts]
    assert disks == [(77, "/scratch"), (22, "/scratch"), (0, None)]


@pytest.mark.parametrize(("ranks", "processors"), [(4, 3), (2, 1)])
def test_threads_and_memory_follow_the_machine(monkeypatch, ranks, processors):
    """A machine of 64 GB: every rank gets its share, and given numbers win."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setattr(BUDGET, "_total", processors)
    monkeypatch.setattr(module, "total_memory", lambda: 64_000_000_000)
    found = machine_budget()
    assert ranks * found.memory_bytes == 16_000_000_000
    assert found.threads == max(2, processors)
    assert machine_budget(memory_bytes=0, threads=1) == Budget(memory_bytes=0, threads=1)
    with pytest.raises(InputError, match=r"data\.cache\.threads must be a whole number of at least 1"):
        machine_budget(threads=0)


def test_tasks_of_slurm_share_the_memory_of_their_node(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "8")
    assert machine_budget().memory_bytes == total_memory() // 4 // 8
    assert "at most 2.5 GB of samples" in describe_budget(Budget(memory_bytes=2_500_000_000))
