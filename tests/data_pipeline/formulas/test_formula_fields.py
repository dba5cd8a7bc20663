"""Formulas in samples, stores and corrections, against the formulas of the members of one archive in GRIB."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from weather_files import weather, write_grib

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.formulas.sphere_derivatives import Band, SphereDerivatives
from data_pipeline.grid import Grid
from data_pipeline.task import Task

GRID = Grid.regular(9, 16)
STARTS, LEADS, NUMBERS = np.array(["2016-01-04", "2016-01-08"], "M8[ns]"), (0, 24, 48), (1, 2, 3)
FORMULAS = ["advection(t@850)", "vorticity@850", "speed@850", "change(t@850, 24)", "change(vorticity@850, 48)"]
TASK = Task("toy", ["t@850"], ["t@850"], [24, 48], formulas=FORMULAS)
FIELDS = Task("fields", ["t@850", "u@850", "v@850"], ["t@850"], [0, 24, 48])


def write(folder, without=()):
    """Write random temperatures and winds, without the forecasts (name, start, lead time, member) of `without`."""
    parts = weather(LEADS, NUMBERS, starts=STARTS, surface=(), grid=GRID)
    ensemble, random = parts["ensemble"], np.random.default_rng(3)
    for name in "uv":
        ensemble[name] = ensemble.t.copy(data=10 * random.standard_normal(ensemble.t.shape))
    for name, *place in without:
        ensemble[name].loc[tuple(place)] = np.nan
    for part, data in parts.items():
        write_grib(folder / part, part, data, bitsPerValue=24)
    return Archive([f"{folder}/ensemble"], [f"{folder}/analysis"])


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return write(tmp_path_factory.mktemp("archive"))


def expected(archive):
    """Return the channels of each sample, (M, C, H, W), by (start, lead), computed from the fields of the archive."""
    fields = archive.ensemble_fields(FIELDS.inputs, FIELDS.lead_times)
    sphere, rows = SphereDerivatives(GRID), slice(0, GRID.shape[0])
    found = {}
    for init, lead in product(range(len(STARTS)), (1, 2)):
        by_lead = np.empty((len(LEADS), len(NUMBERS), 3, *GRID.shape), np.float32)
        for k, values in enumerate(by_lead):
            fields.read(fields.cells[init, k], values)
        members = []
        for number in range(len(NUMBERS)):
            t, u, v = by_lead[lead, number].astype(float)
            east, north = sphere.gradient(Band(t, 0), rows)
            spin = [sphere.vorticity(*(Band(w, 0) for w in own[number, 1:].astype(float)), rows) for own in by_lead]
            change = spin[2] - spin[0] if lead == 2 else np.full(GRID.shape, np.nan)
            before = by_lead[lead - 1, number, 0].astype(float)
            members.append([t, -(u * east + v * north), spin[lead], np.hypot(u, v), t - before, change])
        found[init, LEADS[lead]] = np.array(members, np.float32)
    return found


def arrays(dataset):
    """Return the ensemble of each sample by (start, lead)."""
    starts = dataset.starts.tolist()
    return {
        (starts.index(np.datetime64(int(s.init_time), "s").item()), int(s.lead_time)): s.ensemble.clone().numpy()
        for s in dataset
    }


def test_samples_hold_the_formulas_of_every_member(archive):
    dataset = ForecastDataset(archive, TASK, [2016])
    assert [str(channel) for channel in TASK.channels] == ["t@850", *FORMULAS]
    assert [meaning.units for meaning in dataset.meanings] == ["K", "K s-1", "s-1", "m s-1", "K", "s-1"]
    found, true = arrays(dataset), expected(archive)
    assert found.keys() == true.keys()
    for key in true:
        np.testing.assert_allclose(found[key], true[key], rtol=1e-5, atol=0)
    for sample in dataset:
        known = sample.mask.flatten(1).all(1).tolist()
        assert known == [True] * 5 + [int(sample.lead_time) == 48], "a change of 48 h begins before a start + 24 h"


NESTED = ["advection(absolute_vorticity@850)", "laplacian(laplacian(t@850))", "gradient(inverse_laplacian(t@850))"]


@pytest.mark.parametrize("rows", [slice(0, 1), slice(3, 5)], ids=["pole", "middle"])
def test_tiles_are_those_of_the_globe(archive, rows):
    task, columns = replace(TASK, formulas=[*FORMULAS, *NESTED]), slice(4, 9)
    whole, part = (ForecastDataset(archive, task, [2016], **tile) for tile in ({}, {"rows": rows, "columns": columns}))
    tiles = arrays(part)
    for key, values in arrays(whole).items():
        assert np.array_equal(tiles[key], values[:, :, rows, columns], equal_nan=True)


def test_a_missing_field_of_a_formula_is_named(tmp_path):
    gone = {("u", STARTS[0], 24, 2)}
    made = write(tmp_path, gone)
    with pytest.raises(InputError, match="u@850 of member 2"):
        ForecastDataset(made, TASK, [2016])
    masked = ForecastDataset(Archive(made.ensemble, made.analysis, missing="mask"), TASK, [2016])
    first = next(s for s in masked if int(s.lead_time) == 24)
    assert first.mask.flatten(1).any(1).tolist() == [True, False, False, False, True, False]
    no_wind = Task("toy", ["t@850"], ["t@850"], [24], formulas=["advection(t@850, u@500, v@500)"])
    with pytest.raises(InputError, match="u@500"):
        ForecastDataset(made, no_wind, [2016])
