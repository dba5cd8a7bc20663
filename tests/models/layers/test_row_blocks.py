"""A residual block computed for some rows at a time, against the same layers on all rows at once."""

import pytest
import torch

from data_pipeline.grid import Grid
from models.layers import row_blocks
from models.layers.resolution import Downsample, Upsample
from models.networks.trunk import ResidualBlock

FINE, COARSE = Grid.regular(9, 16), Grid.regular(5, 8)
FORECASTS, MEMBERS, OWN, SHARED, OUTPUTS = 2, 3, 5, 3, 6
PARITY = (1, -1, 1, 1, -1)


def maps(count, channels, grid, **options):
    return torch.randn(count, channels, *grid.shape, dtype=torch.float64, **options)


def forward_and_gradients(block, inputs, at_once, monkeypatch):
    """Return result and gradients of a block that computes `at_once` numbers at once."""
    monkeypatch.setattr(row_blocks, "NUMBERS_AT_ONCE", at_once)
    torch.manual_seed(1)
    out = block(*inputs)
    leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    weight = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return out, torch.autograd.grad(out, (*leaves, *block.parameters()), weight)


def case(name):
    """Return a block with its inputs: those of a first, an encoding or a decoding block of a trunk, or of members."""
    rows = FORECASTS * MEMBERS
    options = {"inputs": OWN, "outputs": OUTPUTS, "dropout": 0.4, "recompute": True}
    inputs = [maps(rows, OWN, FINE)]
    if name == "encoder":
        options, inputs = options | {"grid": COARSE}, [maps(rows, OWN, FINE, requires_grad=True), None, None]
        inputs.append(Downsample(FINE))
    elif name == "decoder":
        options |= {"inputs": OWN + 4}
        inputs = [maps(rows, 4, COARSE, requires_grad=True), None, maps(rows, OWN, FINE, requires_grad=True)]
        inputs.append(Upsample(FINE))
    elif name == "members":
        options |= {"inputs": OWN + SHARED, "shared": SHARED, "parity": (*PARITY, *[1] * SHARED)}
        inputs.append(maps(FORECASTS, SHARED, FINE, requires_grad=True))
    elif name == "winds":
        options |= {"parity": PARITY}
    block = ResidualBlock(**{"grid": FINE} | options).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return block, inputs


@pytest.mark.parametrize(
    ("name", "rows"), [("first", 1), ("winds", 2), ("encoder", 4), ("decoder", 1), ("members", 2), ("members", 4)]
)
def test_some_rows_at_a_time_are_all_rows_at_once(name, rows, monkeypatch):
    torch.manual_seed(0)
    block, inputs = case(name)
    expected, slopes = forward_and_gradients(block, inputs, 1 << 40, monkeypatch)
    out, found = forward_and_gradients(block, inputs, rows * block._numbers, monkeypatch)
    assert type(out.grad_fn).__name__ == "_InRowsBackward" != type(expected.grad_fn).__name__
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    for own, other in zip(found, slopes, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-12 * max(1.0, float(other.abs().max())))


def test_inputs_and_two_results_are_kept(monkeypatch):
    torch.manual_seed(0)
    block, inputs = case("decoder")
    kept = {}
    for at_once in (1, 1 << 40):
        monkeypatch.setattr(row_blocks, "NUMBERS_AT_ONCE", at_once)
        tensors = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, tensors=tensors: tensors.setdefault(t.untyped_storage()._cdata, t), lambda t: t
        ):
            block(*inputs)
        kept[at_once] = sum(t.untyped_storage().nbytes() for t in tensors.values()) // 8
    rows, cells = FORECASTS * MEMBERS, FINE.shape[0] * FINE.shape[1]
    assert kept[1] == (
        sum(x.numel() for x in inputs[::2])
        + 2 * OUTPUTS * rows * cells
        + sum(weight.numel() for weight in block.parameters())
    )
    assert kept[1 << 40] > 2 * kept[1]


def test_without_gradients_and_in_bfloat16_all_rows_are_computed_at_once(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(row_blocks, "NUMBERS_AT_ONCE", 1)
    monkeypatch.setattr(ResidualBlock, "_in_rows", lambda *_: pytest.fail("in rows"))
    block, inputs = case("first")
    with torch.no_grad():
        block(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        block(*inputs)
    with pytest.raises(pytest.fail.Exception, match="in rows"):
        block(*inputs)
