"""A sample survives as bytes; bytes that are not a sample never become one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.prefetch.codec import OVERHEAD, decode, encode
from data_pipeline.sample import Sample


def sent(sample):
    return bytearray(b"".join(encode(sample)))


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 7), st.sampled_from(["f", "d"]))
def test_a_sample_survives_bit_for_bit(same, M, C, H, W, kind):
    dtype = {"f": torch.float32, "d": torch.float64}[kind]
    static = torch.rand(2, H, W)
    sample = Sample(
        torch.rand(M, C, H, W, dtype=dtype), torch.rand(C, H, W) > 0.5, static, torch.full((1, H, W), torch.nan),
        torch.tensor(-5), torch.tensor(48),
    )  # fmt: skip
    data = sent(sample)
    found = decode(data, static)
    assert found.static is static
    assert same(found._replace(target=static), sample._replace(target=static))
    assert found.target.isnan().all()
    assert len(data) <= sum(tensor.nbytes for tensor in sample) - static.nbytes + OVERHEAD


@pytest.mark.parametrize("where", [0, 9, 13, 60, 1500])
def test_a_changed_byte_is_seen(numbered, where):
    data = sent(numbered(1)[0])
    data[where] ^= 1
    assert decode(data, torch.zeros(1)) is None


@pytest.mark.parametrize("length", [0, 5, 1023, 1024, 1500])
def test_a_part_is_seen(numbered, length):
    assert decode(sent(numbered(1)[0])[:length], torch.zeros(1)) is None
