"""Claims are read from any class or module; wrong claims are errors."""

import pytest
from torch import nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models import corrector, laws, protocol
from models.parallel.domain import Domain
from models.protocol import Claims, claims, may_claim

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


def test_missing_claims_are_false():
    assert claims(NoClaims) == claims(NoClaims(TASK, GRID)) == Claims()
    assert claims(OptionalTiles) == claims(OptionalTiles(TASK, GRID)) == Claims(any_grid=True)
    assert claims(OptionalTiles(TASK, GRID, local=True)) == Claims(any_grid=True, tiles=True)


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"tiles": 1}, r"Model.tiles must be True or False, got 1"),
        ({"any_size": "yes"}, r"Model.any_size must be True or False, got 'yes'"),
        ({"moment_only": True}, r"Model.moment_only has no effect; rename it to moments_only if"),
        ({"tile": True}, r"Model.tile has no effect; rename it to tiles if"),
        (
            {"normalize": lambda self, location, scale: None},
            r"Model.normalize has no effect; rename it to normalise if",
        ),
    ],
)
def test_a_wrong_claim_is_an_error(attributes, sentence):
    kind = type("Model", (nn.Module,), attributes)
    for thing in (kind, kind(), type("Child", (kind,), {})()):
        with pytest.raises(
            InputError, match=sentence.replace("Model", type(thing).__name__ if thing is not kind else "Model")
        ):
            claims(thing)


def test_other_attributes_are_ignored():
    kind = type(
        "Model",
        (nn.Module,),
        {"bias": False, "_tile": True, "normals": lambda self: 0, "fitness": True, "physics": "dry"},
    )
    model = kind()
    model._tiles, model.depth = True, False
    assert claims(model) == Claims()


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


def test_a_model_without_the_claim_tiles_gets_no_tile(monkeypatch):
    for module in (corrector, laws):
        monkeypatch.setattr(module, "model_class", lambda target: target)
    halves = Domain.split(GRID, 2, 1)
    assert not may_claim(NoClaims, "tiles")
    assert may_claim(OptionalTiles, "tiles")
    corrector.build_model({"_target_": NoClaims}, TASK, Domain.of(GRID))
    corrector.build_model({"_target_": OptionalTiles, "local": True}, TASK, halves)
    for spec in ({"_target_": NoClaims}, {"_target_": OptionalTiles}):
        with pytest.raises(InputError, match=r"claim `tiles`\), and the mesh has 2 x 1 tiles; .*trainer.mesh=\[2,1\]"):
            corrector.build_model(spec, TASK, halves)


def test_optional_methods_are_called():
    called = []
    kind = type(
        "Model",
        (nn.Module,),
        {"fit": lambda self, batches: called.append(batches), "normalise": lambda self, *units: called.append(units)},
    )
    for model in (nn.Identity(), kind()):
        protocol.normalise(model, 1, 2)
        protocol.fit(model, [3])
    assert called == [(1, 2), [3]]
