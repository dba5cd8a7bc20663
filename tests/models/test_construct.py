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
from models import outline as module
from models.construct import build_part, model_class
from models.outline import check_memory, outline


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


def test_only_models_are_found(write_module):
    """The module `borrowed` only imports its class."""
    write_module("borrowed", "from torch.nn import Conv2d\n")
    for name, sentence in {
        "os.system": "is not in models, the only packages that a _target_ may name here; to allow",
        "modelsx.y.Z": "is not in models",
        None: "is not in models",
        "models.statistical.raw.Cooked": "does not exist in this version; the models are listed in conf/model",
        "models.rare.Raw": "does not exist",
        "models.statistical.raw.Raw.forward": "does not exist",
        "models.networks.network.Tensor": "is not a model",
        "models.networks.mlp.zero_convolution": "is not a model",
        "models.networks.mlp.nn": "is not a model",
        "models.borrowed.Conv2d": "is not a model",
    }.items():
        with pytest.raises(InputError, match=f"{name} {sentence}"):
            model_class(name)


def test_an_error_inside_a_module_is_reported_with_file_and_line(write_module):
    for text, place, cause in (
        ("import torch\nimport no_such_library\n", "line 2", "No module named 'no_such_library'"),
        ("from torch import no_such_name\n", "line 1", "cannot import name 'no_such_name'"),
        ("x = 1\n\ndef f(:\n", "line 3", "SyntaxError: invalid syntax"),
        ("x = 1\ny = undefined\n", "line 2", "NameError: name 'undefined' is not defined"),
        ("import torch\nx = torch.no_such_thing\n", "", "has no attribute 'no_such_thing'"),
        ("from models.no_such_module import x\n", "line 1", "No module named 'models.no_such_module'"),
    ):
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
    net, no_net = {"_target_": "gardens.nets.Net"}, {"_target_": "gardens.nets.no_net"}
    for node, given, sentence in (
        (no_net, {}, "model.x: gardens.nets.no_net returns a int, not a Module"),
        (net | {"width": 3, "inner": no_net}, {}, "model.x.inner: gardens.nets.no_net returns a int, not a Module"),
        ({"_target_": "gardens.nets.os"}, {}, "model.x: gardens.nets.os is not a torch.nn.Module"),
        (net, {}, "model.x has no value for its option 'width'"),
        (net | {"width": 3}, {"width": 4}, "model.x.width is set by the model itself; remove it"),
        ({"_target_": "gardens.weeds.Net"}, {}, "model.x: gardens.weeds.Net does not exist"),
    ):
        with pytest.raises(InputError, match=sentence):
            build_part("model.x", node, **given)


def test_a_part_must_be_in_an_allowed_package():
    for node, sentence in (
        (3, r"model.x must be \{_target_: package.Class, argument: value, ...\}, got 3"),
        ({"_target_": "os.system", "command": "true"}, "model.x: os.system is not in models, torch.nn, the only"),
        ({"_target_": "torch.hub.load"}, "model.x: torch.hub.load is not in models, torch.nn"),
        ({"_target_": "torch.nn.init.zeros_"}, "model.x: torch.nn.init.zeros_ is not a torch.nn.Module"),
        ({"_target_": "models.construct.build_part"}, "model.x: models.construct.build_part is not a torch.nn.Module"),
        ({"_target_": "torch.nn.ReLU", "size": 3}, "model.x has no option 'size'; it has inplace"),
        (
            {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "builtins.eval"}]},
            r"_args_\[0\]: builtins.eval is",
        ),
    ):
        with pytest.raises(InputError, match=sentence):
            build_part("model.x", node)


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


MLP = {"_target_": "models.networks.mlp.MLP", "width": 5}


def test_a_constructor_that_reads_values_has_no_outline():
    """Many image networks read their `drop path` rates from a tensor."""
    assert outline(lambda: nn.Linear(int(torch.linspace(0, 3, 4)[-1].item()), 2)) is None
    assert outline(lambda: nn.Linear(3, 2)).weight.shape == (2, 3)


def test_training_takes_four_times_the_weights(monkeypatch):
    """10 x 10 + 10 numbers of 4 bytes, four times, and a buffer of 3 numbers of 8 bytes: 1,784."""
    net = nn.Linear(10, 10)
    net.register_buffer("constant", torch.zeros(3, dtype=torch.float64))
    monkeypatch.setattr(module, "total_memory", lambda: 1784)
    check_memory("Net", net)
    monkeypatch.setattr(module, "total_memory", lambda: 1783)
    with pytest.raises(InputError, match=r"model Net has 110 parameters, whose training takes 0 GB, but this machine"):
        check_memory("Net", net)
