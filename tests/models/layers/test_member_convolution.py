"""Convolutions of maps of members beside maps that the members share."""

import pytest
import torch

from data_pipeline.grid import Grid
from models.layers.convolution import Conv2d, MemberConv2d
from models.networks.trunk import Trunk

GRID = Grid.regular(7, 12)
B, M, OWN, SHARED = 2, 3, 4, 5
PARITY = (1, -1, 1, -1)


def maps():
    torch.manual_seed(0)
    own, shared = (torch.randn(n, c, *GRID.shape, dtype=torch.float64) for n, c in ((B * M, OWN), (B, SHARED)))
    joined = torch.cat([own, shared.repeat_interleave(M, 0)], dim=1)
    return own.requires_grad_(), shared.requires_grad_(), joined.requires_grad_()


def compare(divided, whole, pair, together):
    """Equal outputs, and equal gradients of the weights and of the own and the shared maps."""
    whole.load_state_dict(divided.state_dict())
    own, shared, joined = maps()
    found, expected = pair(divided, own, shared), together(whole, joined)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    slope = torch.randn_like(found)
    for_own, for_shared, *for_weights = torch.autograd.grad(found, [own, shared, *divided.parameters()], slope)
    for_joined, *wanted = torch.autograd.grad(expected, [joined, *whole.parameters()], slope)
    torch.testing.assert_close(for_own, for_joined[:, :OWN], rtol=1e-10, atol=1e-10)
    of_members = for_joined[:, OWN:].unflatten(0, (B, M)).sum(1)
    torch.testing.assert_close(for_shared, of_members, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(for_weights, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("parity", [(), PARITY], ids=["scalars", "winds"])
def test_the_sum_of_two_convolutions_is_that_of_joined_maps(parity):
    divided = MemberConv2d(GRID, OWN + SHARED, 6, SHARED, parity).double()
    whole = Conv2d(GRID, OWN + SHARED, 6, parity=(*parity, *[1] * SHARED) if parity else ()).double()
    compare(divided, whole, lambda layer, own, shared: layer(own, shared), lambda layer, x: layer(x))


@pytest.mark.parametrize("mixture", [None, {"gate": "computed"}], ids=["convolutions", "mixture"])
def test_a_trunk_has_the_values_of_joined_maps(mixture):
    options = {"width": 4, "depth": 1, "dropout": 0.0, "mixture": mixture, "member_attention": True}
    parity = *PARITY, *[1] * SHARED
    divided, whole = (
        Trunk(GRID, OWN + SHARED, **options, parity=parity, shared=count).double() for count in (SHARED, 0)
    )
    compare(divided, whole, lambda net, own, shared: net(own, M, shared), lambda net, x: net(x, M))


def test_initial_weights_are_those_of_a_convolution():
    found = []
    for make in (lambda: MemberConv2d(GRID, OWN + SHARED, 6, SHARED, PARITY), lambda: Conv2d(GRID, OWN + SHARED, 6)):
        torch.manual_seed(1)
        found.append(make().state_dict())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
