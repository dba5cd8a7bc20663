"""A corrected file is the same, byte for byte, for any number of ranks."""

import math
from dataclasses import replace

import eccodes
import forks
import numpy as np
import pytest
import torch
from conftest import ROOT
from correction_runs import correct
from grib_parts import GRID, write_archive
from ranks import run_on_ranks

from data_pipeline.common.errors import InputError
from data_pipeline.task import Task
from models.correction import shared_reading
from models.corrector import Corrector
from models.parallel.mesh import Mesh, arrange_mesh

# `runpy` warns because the command runs a module that this file has imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")

TASK = Task("toy", ["2t", "msl"], ["2t"], [24])
TWO = replace(TASK, targets=["msl", "2t"])
SPECS = {
    "emos": (TASK, {"_target_": "models.statistical.emos.EMOS"}),
    "two": (TWO, {"_target_": "models.statistical.emos.EMOS"}),
    "unet": (TASK, {"_target_": "models.networks.unet.UNet", "width": 8, "depth": 1}),
}
MESHES = [(1, 2, 1), (1, 1, 3), (1, 2, 2)]


def shape_of(mesh):
    return "x".join(map(str, mesh))


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


def correct_file(mesh, folder, name, target):
    """Return the number of corrected messages on this rank, or the error."""
    try:
        return correct(Corrector.load(folder / f"{name}.safetensors"), folder / "ensemble.grib", target, mesh).messages
    except InputError as error:
        return str(error)


def correct_on_rank(rank, shape, *arguments):
    return correct_file(arrange_mesh(*shape), *arguments)


def fail_to_read_on_the_last_rank(rank, shape, *arguments):
    """Return the error on every rank if only the last rank cannot read."""

    def fail(*_):
        raise InputError("message 3 cannot be read")

    mesh = arrange_mesh(*shape)
    if rank == mesh.ranks - 1:
        shared_reading.read_tile = fail  # in the process of this rank only
    return correct_file(mesh, *arguments)


def values(path):
    """Return the values of all messages, as ecCodes reads them."""
    found = []
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            found.append(eccodes.codes_get_values(handle))
            eccodes.codes_release(handle)
    return np.stack(found)


@pytest.mark.parametrize("mesh", MESHES, ids=shape_of)
def test_the_file_equals_that_of_one_process(mesh, folder, tmp_path):
    one, many = tmp_path / "one", tmp_path / "many"
    assert correct_file(None, folder, "two", one) == 384
    assert run_on_ranks(math.prod(mesh), correct_on_rank, mesh, folder, "two", many) == [384] * math.prod(mesh)
    assert many.read_bytes() == one.read_bytes() != (folder / "ensemble.grib").read_bytes()


def test_the_file_of_a_network_differs_by_rounding_only(folder, tmp_path):
    one, many = tmp_path / "one", tmp_path / "many"
    correct_file(None, folder, "unet", one)
    run_on_ranks(4, correct_on_rank, (1, 2, 2), folder, "unet", many)
    difference = np.abs(values(one) - values(many))
    raw = np.abs(values(one) - values(folder / "ensemble.grib"))
    # One step of the packing is 2^-10 K, and only values half-way between two may be rounded the other way.
    assert difference.max() <= 2**-10 < raw.max()
    assert (difference > 0).mean() < 0.01


def test_a_read_error_on_one_rank_is_raised_on_all(folder, tmp_path):
    target = tmp_path / "never"
    errors = run_on_ranks(2, fail_to_read_on_the_last_rank, (1, 2, 1), folder, "emos", target)
    assert errors == ["message 3 cannot be read"] * 2
    assert not list(tmp_path.iterdir())


def test_a_write_error_on_the_first_rank_is_raised_on_all(folder, tmp_path):
    errors = run_on_ranks(2, correct_on_rank, (1, 1, 2), folder, "emos", tmp_path)
    assert errors == [f"{tmp_path} is a folder; name a file to write"] * 2


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
