"""`_target_` may name classes in allowed packages only; errors inside a module differ from a missing module."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import models
from data_pipeline.common import packages
from data_pipeline.common.errors import InputError
from models import construct
from models.construct import build_part, model_class
from models.networks.unet import UNet


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """Register no package, not even the package of the tests."""
    monkeypatch.setattr(construct, "registered_modules", list)


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Write a file of the package `models` outside the checkout; return its path."""
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, f"models.{name}", raising=False)
        return tmp_path / f"{name}.py"

    return write


def test_a_model_class_is_found():
    assert model_class("models.networks.unet.UNet") is UNet


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("os.system", "model os.system is not in models, the only packages that a _target_ may name here; to allow"),
        ("modelsx.y.Z", "model modelsx.y.Z is not in models"),
        (None, "model None is not in models"),
        (
            "models.statistical.raw.Cooked",
            "model models.statistical.raw.Cooked does not exist in this version; the models are listed in conf/model",
        ),
        ("models.rare.Raw", "model models.rare.Raw does not exist"),
        ("models.statistical.raw.Raw.forward", "model models.statistical.raw.Raw.forward does not exist"),
        ("models.statistical.raw.Tensor", "models.statistical.raw.Tensor is not a model"),
        ("models.networks.mlp.zero_convolution", "models.networks.mlp.zero_convolution is not a model"),
        ("models.networks.mlp.nn", "models.networks.mlp.nn is not a model"),
    ],
)
def test_only_models_are_found(name, sentence):
    with pytest.raises(InputError, match=sentence):
        model_class(name)


def test_a_class_that_a_module_only_imports_is_refused(write_module):
    write_module("borrowed", "from torch.nn import Conv2d\n")
    with pytest.raises(InputError, match=r"models.borrowed.Conv2d is not a model"):
        model_class("models.borrowed.Conv2d")


@pytest.mark.parametrize(
    ("text", "place", "cause"),
    [
        ("import torch\nimport no_such_library\n", "line 2", "No module named 'no_such_library'"),
        ("from torch import no_such_name\n", "line 1", "cannot import name 'no_such_name'"),
        ("x = 1\n\ndef f(:\n", "line 3", "SyntaxError: invalid syntax"),
        ("x = 1\ny = undefined\n", "line 2", "NameError: name 'undefined' is not defined"),
        ("import torch\nx = torch.no_such_thing\n", "", "has no attribute 'no_such_thing'"),
        ("from models.no_such_module import x\n", "line 1", "No module named 'models.no_such_module'"),
    ],
)
def test_an_error_inside_a_module_is_reported_with_file_and_line(write_module, text, place, cause):
    path = write_module("broken", text)
    with pytest.raises(InputError) as raised:
        model_class("models.broken.Model")
    assert str(raised.value).startswith("model models.broken.Model cannot be imported: ")
    assert cause in str(raised.value)
    assert f"{path}, {place}" in str(raised.value) or not place


def test_classes_and_functions_of_a_registered_package_are_found(tmp_path, monkeypatch):
    folder = tmp_path / "gardens"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "nets.py").write_text(
        "import os\nfrom torch import nn\n\n"
        "class Net(nn.Module):\n    def __init__(self, width, inner=None):\n"
        "        super().__init__()\n        self.width, self.inner = width, inner\n\n"
        "def net(width=3):\n    return Net(width)\n\n"
        "def no_net():\n    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"model gardens.nets.Net is not in models"):
        model_class("gardens.nets.Net")
    monkeypatch.setattr(construct, "registered_modules", lambda: ["gardens"])
    assert model_class("gardens.nets.Net").__name__ == "Net"
    with pytest.raises(InputError, match=r"model os.system is not in models, gardens"):
        model_class("os.system")
    inner = {
        "_target_": "torch.nn.Sequential",
        "_args_": [{"_target_": "torch.nn.ReLU"}, {"_target_": "torch.nn.GELU"}],
    }
    made = build_part("model.backbone", {"_target_": "gardens.nets.Net", "inner": inner}, width=5)
    assert made.width == 5
    assert [type(layer) for layer in made.inner] == [nn.ReLU, nn.GELU]
    assert build_part("model.backbone", {"_target_": "gardens.nets.net"}).width == 3
    for node, sentence in {
        "gardens.nets.no_net": "model.x: gardens.nets.no_net returns a int, not a Module",
        "gardens.nets.os": "model.x: gardens.nets.os is not a torch.nn.Module",
        "gardens.nets.Net": "model.x has no value for its option 'width'",
        "gardens.weeds.Net": "model.x: gardens.weeds.Net does not exist",
    }.items():
        with pytest.raises(InputError, match=sentence):
            build_part("model.x", {"_target_": node})
    inner = {"inner": {"_target_": "gardens.nets.no_net"}}
    with pytest.raises(InputError, match=r"model.x.inner: gardens.nets.no_net returns a int, not a Module"):
        build_part("model.x", {"_target_": "gardens.nets.Net", "width": 3} | inner)
    with pytest.raises(InputError, match=r"model.x.width is set by the model itself; remove it"):
        build_part("model.x", {"_target_": "gardens.nets.Net", "width": 3}, width=4)


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (3, r"model.x must be \{_target_: package.Class, argument: value, ...\}, got 3"),
        ({"_target_": "os.system", "command": "true"}, "model.x: os.system is not in models, torch.nn, the only"),
        ({"_target_": "torch.hub.load"}, "model.x: torch.hub.load is not in models, torch.nn"),
        ({"_target_": "torch.nn.init.zeros_"}, "model.x: torch.nn.init.zeros_ is not a torch.nn.Module"),
        ({"_target_": "models.construct.build_part"}, "model.x: models.construct.build_part is not a torch.nn.Module"),
        ({"_target_": "torch.nn.ReLU", "size": 3}, "model.x has no option 'size'; it has inplace"),
        (
            {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "builtins.eval"}]},
            r"model.x._args_\[0\]: builtins.eval is not in models, torch.nn",
        ),
    ],
)
def test_a_part_must_be_in_an_allowed_package(node, sentence):
    with pytest.raises(InputError, match=sentence):
        build_part("model.x", node)


def test_a_part_from_torch_is_built():
    layer = build_part("model.x", {"_target_": "torch.nn.Conv2d", "out_channels": 3, "kernel_size": 1}, in_channels=2)
    assert layer(torch.zeros(1, 2, 4, 5)).shape == (1, 3, 4, 5)


def test_errors_of_a_constructor_are_passed_on():
    """A network may read values, which `models.outline` and `Backbone` handle on a device without values."""
    layer = {"_target_": "torch.nn.Conv2d", "in_channels": 3, "out_channels": 4, "kernel_size": 1, "groups": 2}
    with pytest.raises(ValueError, match="divisible by groups"):
        build_part("model.x", layer)


def test_a_package_must_not_repeat_a_configuration_file(tmp_path, monkeypatch):
    (tmp_path / "orchards" / "conf" / "model").mkdir(parents=True)
    (tmp_path / "orchards" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "orchards-1.0.dist-info").mkdir()
    (tmp_path / "orchards-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: orchards\nVersion: 1.0\n"
    )
    points = tmp_path / "orchards-1.0.dist-info" / "entry_points.txt"
    points.write_text("[deepweather.models]\nany = orchards\nother = gone\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = Path(__file__).parents[2] / "conf"
    assert {"gone", "orchards"} <= set(packages.registered_modules())
    found = packages.conf_folders(own)
    assert found["orchards"] == tmp_path / "orchards" / "conf"
    assert "gone" not in found
    (tmp_path / "orchards" / "conf" / "model" / "unet.yaml").write_text("")
    with pytest.raises(
        InputError, match=r"package orchards and deepweather both have a configuration file model/unet.yaml"
    ):
        packages.conf_folders(own)
