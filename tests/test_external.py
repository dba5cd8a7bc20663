"""Models of an installed package outside the project, from the command line: found, trained, scored, loaded again."""

import json
import re

import pytest
import torch
from grib_parts import OPTIONS, write_archive
from tested_device import accelerator

from data_pipeline.common import packages
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from models.corrector import Corrector

pytestmark = pytest.mark.usefixtures("without_figures")

DATA = [*OPTIONS, "path=."]
QUICK = [
    "trainer.epochs=3", "trainer.batch_size=8", f"trainer.accelerator={accelerator()}", "trainer.learning_rate=0.01",
]  # fmt: skip
VIT = ["model=vit", "model.patch=[3,7]", "model.width=8"]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with an archive whose members are one degree too warm."""
    folder = tmp_path_factory.mktemp("external")
    write_archive(folder)
    return folder


@pytest.fixture(scope="module")
def trained(project, command):
    """The folder with a corrector of an external model."""
    ended = command(project, "train", *DATA, *QUICK, *VIT, "run_dir=runs/vit")
    assert ended.code == 0, ended.stdout + ended.stderr
    return project


def test_the_verbs_train_and_score_an_external_model(trained, command):
    file = "correctors={vit: runs/vit/corrector.safetensors}"
    ended = command(trained, "evaluate", *DATA, file, "references=[raw]", "run_dir=scores")
    assert ended.code == 0, ended.stdout + ended.stderr
    found = json.loads((trained / "scores" / "scores.json").read_text())["models"]
    assert found["vit"]["crps"] < 0.9 * found["raw"]["crps"], "the bias is learnt"


def test_without_the_package_the_name_and_the_corrector_are_refused(trained, command, monkeypatch):
    monkeypatch.setattr("models.construct.registered_modules", list)
    with pytest.raises(InputError, match=r"model weathernets.vit.ViT is not in models, the only packages .* install a"):
        Corrector.load(trained / "runs" / "vit" / "corrector.safetensors")
    monkeypatch.setattr(packages, "registered_modules", list)
    ended = command(trained, "train", *DATA, "model=vit")
    assert ended.code == 2
    assert ended.stderr.startswith("error: there is no model vit; choose one of ")


def test_a_network_for_images_is_named_in_the_options(project, command, toy):
    """Here by the function that makes it; a class is named alike."""
    backbone = "model.backbone={_target_: weathernets.resnet.resnet, width: 6, blocks: 1}"
    ended = command(project, "train", *DATA, *QUICK, "model=backbone", backbone, "run_dir=runs/backbone")
    assert ended.code == 0, ended.stdout + ended.stderr
    corrector = Corrector.load(project / "runs/backbone/corrector.safetensors")
    net = corrector.model
    assert (type(net.backbone).__name__, net.last.in_channels) == ("ResNet", 6)
    sample = corrector.normalizer(next(batches(toy(corrector.task, corrector.grid, 3), 3)))
    with torch.no_grad():
        features = net.features(sample)
        output = net.head(net.last(net.backbone(features)), sample, net.features.errors_among(features))
        torch.testing.assert_close(net(sample).mean, output.mean, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["model=vit", "model.patch=[2,4]"], r"patches of 2 x 4 cells do not cover 9 x 14 points, latitudes 90 to -90"),
        (
            ["model=vit", "model.patch=[3,7]", "model.width=1000000"],
            r"model \S+ has [\d,]{15,} parameters, whose training takes [\d,]{6,} GB, but this",
        ),
        (
            [*VIT, "trainer.mesh=[1,2]"],
            r"model .*works on whole fields only .* and the mesh has 2 x 1 tiles; use .*trainer.mesh=\[2,1\]$",
        ),
    ],
    ids=["patches", "memory", "tiles"],
)
def test_what_a_model_cannot_do_is_refused_before_processes_are_started(project, command, monkeypatch, words, sentence):
    monkeypatch.setattr("models.parallel.mesh.launch", None)
    ended = command(project, "train", *DATA, *QUICK, *words, "run_dir=no")
    assert ended.code == 2, ended.stdout + ended.stderr
    (line,) = ended.stderr.splitlines()
    assert re.match(f"error: {sentence}", line)
    assert not (project / "no/corrector.safetensors").exists()
