"""Claims are read from any class or module; wrong claims are errors."""

import pytest
from torch import nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models import protocol
from models.protocol import Claims, claims

TASK = Task("toy", ["2t"], ["2t"], [24])
GRID = Grid.regular(7, 8)


class NoClaims(nn.Module):
    """Claims nothing; builds on a `Grid` only."""

    def __init__(self, task, grid):
        super().__init__()
        self.rows = len(grid.latitudes)


class OptionalTiles(nn.Module):
    """Takes tiles with some of its options."""

    any_grid = True

    def __init__(self, task, grid, local=False):
        super().__init__()
        self._local = local

    @property
    def tiles(self):
        return self._local


def test_missing_claims_are_false_and_other_attributes_ignored():
    assert claims(NoClaims) == claims(NoClaims(TASK, GRID)) == Claims()
    assert claims(OptionalTiles) == claims(OptionalTiles(TASK, GRID)) == Claims(any_grid=True)
    assert claims(OptionalTiles(TASK, GRID, local=True)) == Claims(any_grid=True, tiles=True)
    kind = type(
        "Model",
        (nn.Module,),
        {"bias": False, "_tile": True, "normals": lambda self: 0, "fitness": True, "physics": "dry"},
    )
    model = kind()
    model._tiles, model.depth = True, False
    assert claims(model) == Claims()


def test_a_wrong_claim_is_an_error():
    for attributes, sentence in (
        ({"tiles": 1}, r"Model.tiles must be True or False, got 1"),
        ({"any_size": "yes"}, r"Model.any_size must be True or False, got 'yes'"),
        ({"moment_only": True}, r"Model.moment_only has no effect; rename it to moments_only if"),
        ({"tile": True}, r"Model.tile has no effect; rename it to tiles if"),
        (
            {"normalize": lambda self, location, scale: None},
            r"Model.normalize has no effect; rename it to normalise if",
        ),
    ):
        kind = type("Model", (nn.Module,), attributes)
        for thing in (kind, kind(), type("Child", (kind,), {})()):
            with pytest.raises(
                InputError, match=sentence.replace("Model", type(thing).__name__ if thing is not kind else "Model")
            ):
                claims(thing)


@pytest.mark.parametrize("name", protocol.CLASS_CLAIMS)
def test_class_claims_cannot_depend_on_options(name):
    late = nn.Identity()
    setattr(late, name, True)
    answered = type("Model", (nn.Module,), {name: property(lambda self: True)})()
    for model in (late, answered):
        with pytest.raises(InputError, match=f"{name} is read before the model is built; .* as {name} = True"):
            claims(model)


def test_an_error_within_a_claim_is_not_hidden():
    """`nn.Module` turns an AttributeError inside a property into "there is no such attribute"."""
    kind = type("Model", (nn.Module,), {"tiles": property(lambda self: self.missing)})
    with pytest.raises(AttributeError, match="missing"):
        claims(kind())
