"""Options of the cache: refused values, and their division among data sets."""

import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.budget import Budget


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
