"""What a run may spend."""

import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.budget import Budget


@pytest.mark.parametrize(
    ("option", "value", "least"),
    [("staging", 0, 1), ("memory", -1, 0), ("disk", 1e9, 0), ("threads", 0, 1), ("memory", "4 GB", 0)],
)
def test_a_wrong_number_is_named(option, value, least):
    with pytest.raises(InputError, match=rf"data\.cache\.{option} must be a whole number of at least {least}, got"):
        Budget(**{option: value})


def test_disk_and_folder_come_together():
    with pytest.raises(InputError, match=r"data\.cache\.disk allows 5 bytes but .* name a folder"):
        Budget(disk=5)
    with pytest.raises(InputError, match=r"data\.cache\.folder is /scratch but .* say how many with data\.cache\.disk"):
        Budget(folder="/scratch")


def test_shares_add_up_to_no_more_than_the_whole():
    whole = Budget(staging=1001, memory=999, disk=100, folder="/scratch")
    shares = whole.shares([700, 200, 1])
    assert all(sum(getattr(share, name) for share in shares) <= getattr(whole, name) for name in ("memory", "disk"))
    assert [share.staging for share in shares] == [333] * 3
    assert [share.memory for share in shares] == [776, 221, 1]
    assert [(share.disk, share.folder) for share in shares] == [(77, "/scratch"), (22, "/scratch"), (0, None)]
