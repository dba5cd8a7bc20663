"""The pages of docs/tutorials, and docs/recipes/ens10.md, are followed from their first block to their last."""

import json
import shutil

import eccodes
import numpy as np
import pytest
import torch
import xarray as xr
from followed_page import follow, follow_recipe
from safetensors.torch import load_file
from twin_project import messages

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def twin(first_project, tmp_path_factory):
    """The folder in which the first tutorial has been followed, and what its commands printed.

    The first command finds the files of the twin, and would refuse those of other options.
    """
    folder = tmp_path_factory.mktemp("tutorials")
    shutil.copytree(first_project / "data/twin", folder / "data/small")
    return folder, follow("tutorials/twin.md", folder)


def values(path, name, lead):
    """All values of one field for each member, from a GRIB file."""
    found = {}
    for handle in messages(path):
        if (eccodes.codes_get(handle, "shortName"), eccodes.codes_get(handle, "step")) == (name, lead):
            found[eccodes.codes_get(handle, "number")] = eccodes.codes_get_values(handle)
    return np.stack([found[number] for number in sorted(found)])


def test_a_first_correction_on_the_twin(twin):
    folder, printed = twin
    table = next(text for line, text in printed.items() if line.startswith("deepweather evaluate"))
    assert {"raw", "emos", "mlp", "oracle"} <= {line.split()[0] for line in table.splitlines() if line.strip()}
    raw, corrected = folder / "data/small/output.sfc.20180108", folder / "corrected.grib"
    assert not np.allclose(values(raw, "2t", 48), values(corrected, "2t", 48), atol=0.1)
    np.testing.assert_array_equal(values(raw, "msl", 48), values(corrected, "msl", 48))


def test_the_report_answers_four_questions(twin):
    folder, _ = twin
    printed = follow("tutorials/report.md", folder)
    assert (folder / "runs/scores/report.html").is_file()
    interval = next(text for text in printed.values() if text.startswith("EMOS reduces the CRPS by"))
    low, high = (int(word) for word in interval.split() if word.lstrip("-").isdigit())
    assert low < high


def test_own_grib_files(twin):
    folder, _ = twin
    follow("tutorials/grib.md", folder)
    raw = folder / "archive/ens/output.sfc.20180108"
    for lead in (24, 48):
        assert not np.allclose(values(raw, "10u", lead), values(folder / "wind.grib", "10u", lead), atol=0.05)
    np.testing.assert_array_equal(values(raw, "2t", 48), values(folder / "wind.grib", "2t", 48))


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_own_netcdf_and_zarr(tmp_path):
    """The bias of 2 K is removed, and both formats give the same coefficients."""
    printed = follow("tutorials/netcdf_zarr.md", tmp_path)
    assert float(next(text for line, text in printed.items() if line.startswith("import xarray"))) == pytest.approx(
        -2, abs=0.3
    )
    with xr.open_dataset(tmp_path / "latest.nc") as raw, xr.open_dataset(tmp_path / "corrected.nc") as corrected:
        assert corrected.t2m.dims == raw.t2m.dims
    netcdf, zarr = (load_file(tmp_path / f"runs/{name}/corrector.safetensors") for name in ("netcdf", "zarr"))
    assert netcdf.keys() == zarr.keys()
    assert all(torch.equal(netcdf[name], zarr[name]) for name in netcdf)


def test_the_recipe_of_ens10(project):
    """The files of the twin have the layout of ENS-10; all years of a file are corrected."""
    (project / "ens10").symlink_to("data/twin")
    follow_recipe("ens10.md", project)
    years = {eccodes.codes_get(handle, "dataDate") // 10000 for handle in messages(project / "corrected.grib")}
    assert years == {*range(2010, 2018)}
    scores = json.loads((project / "runs/ens10/scores/scores.json").read_text())
    assert scores["n_dates"] == 8
    assert scores["models"]["emos"]["crps"] < scores["models"]["raw"]["crps"]
