"""What a run may spend."""

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
def test_a_wrong_number_is_named(option, value, least):
    with pytest.raises(InputError, match=rf"data\.cache\.{option} must be a whole number of at least {least}, got"):
        Budget(**{option: value})


def test_disk_and_folder_come_together():
    with pytest.raises(InputError, match=r"data\.cache\.disk_bytes is 5 but .* set it to a folder"):
        Budget(disk_bytes=5)
    with pytest.raises(InputError, match=r"data\.cache\.disk_folder is /scratch but .* set data\.cache\.disk_bytes"):
        Budget(disk_folder="/scratch")


def test_shares_add_up_to_no_more_than_the_whole():
    whole = Budget(staging_bytes=1001, memory_bytes=999, disk_bytes=100, disk_folder="/scratch")
    shares = whole.divide([700, 200, 1])
    assert all(
        sum(getattr(share, name) for share in shares) <= getattr(whole, name) for name in ("memory_bytes", "disk_bytes")
    )
    assert [share.staging_bytes for share in shares] == [333] * 3
    assert [share.memory_bytes for share in shares] == [776, 221, 1]
    assert [(share.disk_bytes, share.disk_folder) for share in shares] == [
        (77, "/scratch"),
        (22, "/scratch"),
        (0, None),
    ]
