"""The verb `correct` for forecasts on another grid than the corrector's."""

import eccodes
import numpy as np
import pytest
import torch
from correction_runs import EMOS, correct, random_corrector, write_members
from grib_parts import GRID, reduced_message
from twin_project import keys, messages

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.grid import Grid
from data_pipeline.regridding.weights import METHODS, weights_between
from data_pipeline.task import Task
from models.corrector import Corrector

TASK = Task("toy", ["10u", "2t"], ["2t"], [24])
FINE, MEMBERS = Grid.regular(17, 28), 4
STEP = 2.0**-11
"""The step of the packing: values on the edge of a step may be rounded to either side."""
NAMESPACES = ("ls", "mars", "parameter", "time", "vertical")
GRID_KEYS = {"gridType", "Ni", "Nj", "packingType", "grid"}


def make_corrector(method):
    """A corrector with different weights and units in every cell, trained on data that `method` brought to its grid."""
    return random_corrector(TASK.only_targets(), provenance={"regridding": method})


def write_reduced(path, edition, hole=(), **options):
    """Write 2t and msl of all members on N32; return the fields of 2t and their grid."""
    handle = eccodes.codes_grib_new_from_samples(f"reduced_gg_pl_32_grib{edition}")
    grid = Layout.of(handle).grid
    random, fields = np.random.default_rng(5), []
    member = {"productDefinitionTemplateNumber": 1} if edition == 2 else {"localDefinitionNumber": 1}
    kind = {"centre": "ecmf", "setLocalDefinition": 1, **member, "type": "pf", "stream": "enfo"}
    kind |= {"typeOfLevel": "surface"} | options
    with path.open("wb") as file:
        for name in ("2t", "msl"):
            for number in range(1, MEMBERS + 1):
                field = 280 + 8 * random.standard_normal(grid.shape[1])
                field[list(hole)] = np.nan
                own = {**kind, "shortName": name, "dataDate": 20200101, "step": 24, "number": number}
                file.write(reduced_message(edition, field, **own))
                fields += [field] * (name == "2t")
    return fields, grid


def write_regular(path, fields, grid=GRID):
    """Write fields of 2t on a regular grid."""
    write_members(path, {("2t", 20200101, 24, k): field for k, field in enumerate(fields, 1)}, grid, bitsPerValue=24)


def read(path):
    """Messages, keys that do not describe the grid, and fields, in file order."""
    found = []
    for handle in messages(path):
        kept = {name: value for name, value in keys(handle, *NAMESPACES).items() if name not in GRID_KEYS}
        eccodes.codes_set(handle, "missingValue", 1e30)
        values = eccodes.codes_get_values(handle)
        values[values == 1e30] = np.nan
        found.append((eccodes.codes_get_message(handle), kept, values, Layout.of(handle).grid))
    return found


@pytest.mark.parametrize(("edition", "method"), [(2, method) for method in METHODS] + [(1, METHODS[0])])
def test_a_reduced_forecast_becomes_regular_messages_with_all_other_keys(tmp_path, edition, method):
    """Values equal those of the corrected forecast that was brought to the grid before."""
    fields, source = write_reduced(tmp_path / "in", edition)
    brought = [weights_between(source, GRID, method).apply(field, np.arange(GRID.shape[0])) for field in fields]
    write_regular(tmp_path / "regular", brought)
    corrector = make_corrector(method)
    summary = correct(corrector, tmp_path / "in", tmp_path / "out")
    assert summary.messages == MEMBERS
    assert summary.notes == [
        f"{MEMBERS} corrected messages were on the reduced Gaussian grid N32 (6114 points); they are now on the "
        f"corrector's grid of {GRID}, brought to it by {method} weights; all other messages keep their grid"
    ]
    correct(corrector, tmp_path / "regular", tmp_path / "expected")
    before, after, expected = (read(tmp_path / name) for name in ("in", "out", "expected"))
    assert len(after) == len(before)
    for k, (old, new) in enumerate(zip(before, after, strict=True)):
        if k >= MEMBERS:
            assert new[0] == old[0]
            continue
        assert new[1] == old[1]
        assert new[3].matches(GRID)
        np.testing.assert_allclose(new[2], expected[k][2], rtol=0, atol=STEP)
    assert {key: before[0][1][key] for key in ("shortName", "number")} == {"shortName": "2t", "number": "1"}


@pytest.mark.parametrize("edition", [1, 2])
def test_missing_values_and_packing_are_kept(tmp_path, edition):
    """The hole covers a row of points in every member; most of the cells that it covers are missing."""
    packing = {"packingType": "grid_ccsds"} if edition == 2 else {}
    fields, source = write_reduced(tmp_path / "in", edition, hole=range(1000, 1900), **packing)
    missing = np.isnan(weights_between(source, GRID, "conservative").apply(fields[0], np.arange(GRID.shape[0])))
    assert 5 < missing.sum() < GRID.shape[0] * GRID.shape[1] / 2
    correct(make_corrector("conservative"), tmp_path / "in", tmp_path / "out")
    for message, _, values, _ in read(tmp_path / "out")[:MEMBERS]:
        np.testing.assert_array_equal(np.isnan(values).reshape(GRID.shape), missing)
        handle = eccodes.codes_new_from_message(message)
        assert eccodes.codes_get(handle, "packingType") == packing.get("packingType", "grid_simple")
        assert eccodes.codes_get(handle, "bitsPerValue") == 24
        eccodes.codes_release(handle)


@pytest.mark.parametrize("method", ["bilinear", "points"])
def test_a_finer_regular_forecast_is_brought_to_the_grid(tmp_path, method):
    fields = 280 + 8 * np.random.default_rng(1).standard_normal((MEMBERS, *FINE.shape))
    write_regular(tmp_path / "in", fields, FINE)
    write_regular(tmp_path / "regular", fields[:, ::2, ::2])
    corrector = make_corrector(method)
    note = correct(corrector, tmp_path / "in", tmp_path / "out").notes[0]
    assert note.startswith(f"{MEMBERS} corrected messages were on {FINE}; they are now on")
    assert correct(corrector, tmp_path / "regular", tmp_path / "expected").notes == []
    for new, expected in zip(read(tmp_path / "out"), read(tmp_path / "expected"), strict=True):
        np.testing.assert_allclose(new[2], expected[2], rtol=0, atol=STEP)
        assert new[1] == expected[1]


@pytest.mark.parametrize("reduced", [True, False])
def test_a_corrector_of_one_grid_refuses_other_grids(tmp_path, reduced):
    if reduced:
        write_reduced(tmp_path / "in", 2)
    else:
        write_regular(tmp_path / "in", np.full((MEMBERS, *FINE.shape), 280.0), FINE)
    with pytest.raises(InputError, match=r"(N32|17 x 28 ).*the corrector 9 x 14 .*train .*with data\.archive\.grid"):
        correct(make_corrector(None), tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_corrector_on_gaussian_latitudes_cannot_write_other_grids(tmp_path):
    write_reduced(tmp_path / "in", 1)
    grid = Grid((70.0, 40.0, 5.0, -60.0), GRID.longitudes)
    corrector = Corrector(TASK.only_targets(), grid, EMOS, torch.rand(3, *grid.shape), {"regridding": "bilinear"})
    with pytest.raises(InputError, match=r"latitudes of 4 x 14 points.* are not evenly spaced"):
        correct(corrector.eval(), tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()
