"""A corrected file is the same, byte for byte, for any number of ranks."""

from dataclasses import replace
from unittest.mock import patch

import forks
import numpy as np
import pytest
import torch
from conftest import ROOT
from correction_runs import correct, read_values
from grib_parts import GRID, write_archive
from ranks import run_on_ranks

from data_pipeline.common.errors import InputError
from data_pipeline.task import Task
from models.corrector import Corrector
from models.engines.forecast import SharedReading
from models.members.options import CorrectionOptions
from models.parallel.mesh import Mesh, arrange_mesh

# `runpy` warns because the command runs a module that this file has imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")

TASK = Task("toy", ["2t", "msl"], ["2t"], [24])
PRODUCTS = CorrectionOptions(members="none", products=("mean", "spread"))
TWO = replace(TASK, targets=["msl", "2t"])
SPECS = {
    "emos": (TASK, {"_target_": "models.statistical.emos.EMOS"}),
    "two": (TWO, {"_target_": "models.statistical.emos.EMOS"}),
    "unet": (TASK, {"_target_": "models.networks.unet.UNet", "width": 8, "depth": 1}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with forecasts, and correctors with different weights in every cell and channel."""
    folder = tmp_path_factory.mktemp("files")
    write_archive(folder)
    for name, (task, spec) in SPECS.items():
        torch.manual_seed(0)
        corrector = Corrector(task, GRID, spec, torch.rand(3, *GRID.shape))
        corrector.normalizer.location.fill_(280)
        corrector.normalizer.scale.fill_(8)
        for values in corrector.model.state_dict().values():
            values.add_(0.02 * torch.randn_like(values))
        corrector.save(folder / f"{name}.safetensors")
    return folder


def correct_file(mesh, folder, name, target, options=None):
    """Return the number of corrected messages on this rank, or the error."""
    corrector = Corrector.load(folder / f"{name}.safetensors")
    try:
        return correct(corrector, folder / "ensemble.grib", target, mesh, options=options).messages
    except InputError as error:
        return str(error)


def fail_on_one_rank(mesh, folder, target):
    """Return the error on every rank if only the last rank cannot read."""

    def fail(*_):
        raise InputError("message 3 cannot be read")

    with patch.object(SharedReading, "read", fail if mesh.rank else SharedReading.read):
        return correct_file(mesh, folder, "emos", target)


def correct_on_rank(rank, folder, target):
    """The numbers of messages and the errors of this rank."""
    bands, sectors = arrange_mesh(1, 2), arrange_mesh(1, 1, 2)
    return [
        correct_file(bands, folder, "two", target / "bands"),
        correct_file(sectors, folder, "two", target / "sectors"),
        correct_file(sectors, folder, "unet", target / "unet"),
        fail_on_one_rank(bands, folder, target / "never"),
        correct_file(sectors, folder, "emos", target),
        correct_file(bands, folder, "two", target / "products", PRODUCTS),
    ]


def test_the_file_equals_that_of_one_process_and_all_ranks_raise_an_error_of_one(folder, tmp_path):
    """A U-Net's values differ by rounding; one rank cannot read, and the first rank cannot write."""
    assert correct_file(None, folder, "two", tmp_path / "one") == 384
    correct_file(None, folder, "unet", one := tmp_path / "unet of one")
    for messages in run_on_ranks(2, correct_on_rank, folder, tmp_path):
        assert messages[:2] == [384, 384]
        assert messages[3:5] == ["message 3 cannot be read", f"{tmp_path} is a folder; name a file to write"]
        assert messages[5] == 192
    assert not (tmp_path / "never").exists()
    assert correct_file(None, folder, "two", tmp_path / "products of one", PRODUCTS) == 192
    assert (tmp_path / "products of one").read_bytes() == (tmp_path / "products").read_bytes()
    raw = folder / "ensemble.grib"
    expected = (tmp_path / "one").read_bytes()
    assert (tmp_path / "bands").read_bytes() == (tmp_path / "sectors").read_bytes() == expected != raw.read_bytes()
    difference = np.abs(read_values(one, GRID) - read_values(tmp_path / "unet", GRID))
    # One step of the packing is 2^-10 K, and only values half-way between two may be rounded the other way.
    assert difference.max() <= 2**-10 < np.abs(read_values(one, GRID) - read_values(raw, GRID)).max()
    assert (difference > 0).mean() < 0.01


def test_a_mesh_with_data_parallelism_is_an_error(folder, tmp_path):
    errors = correct_file(Mesh(2, 1, 1), folder, "emos", tmp_path / "never")
    assert errors.startswith("the first number of mesh must be 1, got 2: forecasts are corrected one after the other")


def test_the_command_starts_its_ranks(folder, tmp_path):
    correct_file(None, folder, "two", tmp_path / "one")
    files = [f"corrector={folder}/two.safetensors", f"input={folder}/ensemble.grib", "output=many"]
    ended = forks.run([ROOT / "scripts/deepweather.py", "correct", "mesh=[1,2]", *files], cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    first, note, cost = ended.stdout.splitlines()
    assert cost.startswith("done in ")
    assert first == "many: 384 messages corrected (msl, 2t at +24 h), all others copied unchanged"
    assert "two.safetensors does not state the ranges of its training data" in note
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()
