"""Options of the cache: refused values, and their division among data sets."""

import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import BUDGET
from data_pipeline.prefetch import budget as module
from data_pipeline.prefetch.budget import Budget, describe_budget, machine_budget


def test_wrong_options_are_refused():
    for options, sentence in (
        ({"staging_bytes": 0}, r"staging_bytes must be a whole number of at least 1, got 0"),
        ({"memory_bytes": "4 GB"}, r"memory_bytes must be a whole number of at least 0, got '4 GB'"),
        ({"disk_bytes": 1e9}, r"disk_bytes must be a whole number of at least 0, got"),
        ({"threads": 0}, r"threads must be a whole number of at least 1, got 0"),
        ({"disk_bytes": 5}, r"disk_bytes is 5 but .* set it to a folder"),
        ({"disk_folder": "/scratch"}, r"disk_folder is /scratch but .* set data\.cache\.disk_bytes"),
    ):
        with pytest.raises(InputError, match=rf"data\.cache\.{sentence}"):
            Budget(**options)


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
    """A machine of 64 GB: every rank, or task of Slurm, gets its share, and given numbers win."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setattr(BUDGET, "_total", processors)
    monkeypatch.setattr(module, "total_memory", lambda: 64_000_000_000)
    found = machine_budget()
    assert ranks * found.memory_bytes == 16_000_000_000
    assert found.threads == max(2, processors)
    assert machine_budget(memory_bytes=0, threads=1) == Budget(memory_bytes=0, threads=1)
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "8")
    assert machine_budget().memory_bytes == 64_000_000_000 // 4 // 8
    assert "at most 2.5 GB of samples" in describe_budget(Budget(memory_bytes=2_500_000_000))
