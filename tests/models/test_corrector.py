import pytest
import torch
from safetensors.torch import save_file

from data_pipeline.dataset import batches
from data_pipeline.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector, build_model, model_class
from models.normalizer import Normalizer

TASK = Task("rain", ["tp", "2t"], ["tp"], [48])
GRID = Grid.regular(7, 8)
RAW = {"_target_": "models.raw.Raw"}


def test_members_respect_physical_bounds(toy):
    data = toy(TASK, GRID, 4)
    sample = next(batches(data, 4))
    sample = sample._replace(ensemble=sample.ensemble - 280)
    assert sample.ensemble[:, :, 0].min() < 0
    assert Corrector(TASK, GRID, RAW, data.static).members(sample).min() == 0


def test_normalising_is_undone_exactly(toy):
    """Means and mean squares of normalised samples, taken by brute force, are 0 and 1."""
    data = toy(TASK, GRID, 12)
    normalizer = Normalizer(TASK, GRID)
    normalizer.fit(lambda: batches(data, 5))
    whole = normalizer(next(batches(data, 12)))
    torch.testing.assert_close(whole.ensemble.mean((0, 1)), torch.zeros(2, *GRID.shape), atol=1e-4, rtol=0)
    area = torch.tensor(GRID.weights, dtype=torch.float32)[:, None]
    torch.testing.assert_close((whole.ensemble.square() * area).mean((0, 1, 3, 4)), torch.ones(2), rtol=1e-4, atol=0)
    location, scale = normalizer.target_scaling
    torch.testing.assert_close(whole.target * scale + location, next(batches(data, 12)).target)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"_target_": "os.system"}, "not a model of this project"),
        ({"_target_": "models.raw.Cooked"}, "there is no model models.raw.Cooked"),
        ({"_target_": "models.raw.Tensor"}, "is not a model"),
    ],
)
def test_only_models_are_made(spec, sentence):
    with pytest.raises(InputError, match=sentence):
        model_class(spec)


def test_a_misspelt_hyper_parameter_is_named():
    with pytest.raises(InputError, match="MLP has no option 'widht'; it has width, depth, dropout"):
        build_model({"_target_": "models.mlp.MLP", "widht": 3}, TASK, GRID)


def test_a_file_that_is_no_corrector_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"there is no corrector .*missing"):
        Corrector.load(tmp_path / "missing")
    (tmp_path / "text").write_text("not tensors")
    with pytest.raises(InputError, match=r"text is not a whole safetensors file"):
        Corrector.load(tmp_path / "text")
    save_file({"a": torch.ones(1)}, tmp_path / "tensors")
    with pytest.raises(InputError, match="holds tensors but no corrector"):
        Corrector.load(tmp_path / "tensors")


def test_a_truncated_corrector_is_refused_by_name(tmp_path, toy):
    path = tmp_path / "corrector.safetensors"
    Corrector(TASK, GRID, RAW, toy(TASK, GRID, 1).static).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="not a whole safetensors file"):
        Corrector.load(path)


def test_a_file_of_other_shapes_is_refused_by_name(toy, tmp_path, monkeypatch):
    """The model has changed since the file was written."""
    made = Corrector(TASK, GRID, {"_target_": "models.mlp.MLP", "width": 5}, toy(TASK, GRID, 1).static)
    monkeypatch.setitem(made.spec, "width", 6)
    made.save(tmp_path / "old.safetensors")
    with pytest.raises(InputError, match=r"old.safetensors holds a model MLP of another version of this; train it"):
        Corrector.load(tmp_path / "old.safetensors")


@pytest.mark.parametrize(
    ("mixture", "sentence"),
    [
        ({"expert": 3}, "model.mixture has no option 'expert'; it has experts, gate, degree, blend, weighted, routing"),
        ({"gate": "garden"}, "model.mixture.gate must be one of latent, sphere, computed, got 'garden'"),
        ({"gate": "sphere"}, "model.mixture.degree belongs to gate sphere, got None with sphere"),
        ({"degree": 3}, "model.mixture.degree belongs to gate sphere, got 3 with latent"),
        ({"experts": 1, "routing": {}}, "model.mixture.experts must be a whole number of at least 2, got 1"),
        ({"routing": {"quantil": 0.3}}, "model.mixture.routing has no option 'quantil'"),
    ],
)
def test_wrong_options_of_a_mixture_are_named(mixture, sentence):
    with pytest.raises(InputError, match=sentence):
        build_model({"_target_": "models.unet.UNet", "width": 4, "mixture": mixture}, TASK, GRID)
