"""Claims are read off any class or module; wrong ones are refused by a sentence."""

import pytest
from torch import nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models import corrector, protocol
from models.parallel.domain import Domain
from models.protocol import Claims, claims, may_take_tiles

TASK = Task("toy", ["2t"], ["2t"], [24])
GRID = Grid.regular(7, 8)


class Silent(nn.Module):
    """Claims nothing; builds on a `Grid` only."""

    def __init__(self, task, grid):
        super().__init__()
        self.rows = len(grid.latitudes)


class Depends(nn.Module):
    """Takes tiles with some of its options."""

    any_grid = True

    def __init__(self, task, grid, local=False):
        super().__init__()
        self._local = local

    @property
    def tiles(self):
        return self._local


def test_what_a_model_does_not_mention_has_the_default():
    assert claims(Silent) == claims(Silent(TASK, GRID)) == Claims()
    assert claims(Depends) == claims(Depends(TASK, GRID)) == Claims(any_grid=True)
    assert claims(Depends(TASK, GRID, local=True)) == Claims(any_grid=True, tiles=True)


def test_a_claim_may_be_set_in_the_constructor():
    model = Silent(TASK, GRID)
    model.any_size = True
    assert claims(model) == Claims(any_size=True)


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"tiles": 1}, r"Model.tiles must be True or False, got 1"),
        ({"any_size": "yes"}, r"Model.any_size must be True or False, got 'yes'"),
        ({"moment_only": True}, r"Model.moment_only has no effect; if you mean moments_only, spell it so"),
        ({"tile": True}, r"Model.tile has no effect; if you mean tiles"),
        ({"normalize": lambda self, location, scale: None}, r"Model.normalize has no effect; if you mean normalise"),
    ],
)
def test_a_wrong_claim_is_refused(attributes, sentence):
    kind = type("Model", (nn.Module,), attributes)
    for thing in (kind, kind(), type("Child", (kind,), {})()):
        with pytest.raises(
            InputError, match=sentence.replace("Model", type(thing).__name__ if thing is not kind else "Model")
        ):
            claims(thing)


def test_attributes_that_are_no_claims_are_let_alone():
    kind = type(
        "Model",
        (nn.Module,),
        {"bias": False, "_tile": True, "normals": lambda self: 0, "fitness": True, "physics": "dry"},
    )
    model = kind()
    model._tiles, model.depth = True, False
    assert claims(model) == Claims()


@pytest.mark.parametrize("name", protocol.BEFORE_BUILDING)
def test_what_is_asked_of_the_class_cannot_depend_on_options(name):
    late = nn.Identity()
    setattr(late, name, True)
    answered = type("Model", (nn.Module,), {name: property(lambda self: True)})()
    for model in (late, answered):
        with pytest.raises(InputError, match=f"{name} is asked before the model is built; .* as {name} = True"):
            claims(model)


def test_an_error_within_a_claim_is_not_hidden():
    """`nn.Module` turns an AttributeError inside a property into "there is no such attribute"."""
    kind = type("Model", (nn.Module,), {"tiles": property(lambda self: self.missing)})
    with pytest.raises(AttributeError, match="missing"):
        claims(kind())


def test_only_a_model_that_may_claim_tiles_is_given_one(monkeypatch):
    monkeypatch.setattr(corrector, "model_class", lambda target: target)
    halves = Domain.split(GRID, 2, 1)
    assert not may_take_tiles(Silent)
    assert may_take_tiles(Depends)
    corrector.build_model({"_target_": Silent}, TASK, Domain.of(GRID))
    corrector.build_model({"_target_": Depends, "local": True}, TASK, halves)
    for spec in ({"_target_": Silent}, {"_target_": Depends}):
        with pytest.raises(InputError, match=r"claim `tiles`\), and the mesh has 2 x 1 tiles; .*trainer.mesh=\[2,1\]"):
            corrector.build_model(spec, TASK, halves)


def test_methods_are_called_where_they_are():
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
