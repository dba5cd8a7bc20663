"""Formulas in samples, stores and corrections, against the formulas of the members of one archive in GRIB."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from correction_runs import correct

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.formats.datasets import select_variable
from data_pipeline.formats.grib import Encoder
from data_pipeline.formats.open import open_ensemble
from data_pipeline.formulas.sphere_derivatives import Band, SphereDerivatives
from data_pipeline.grid import Grid
from data_pipeline.pseudo_members import pseudo_members
from data_pipeline.store import Store
from data_pipeline.task import Task
from models.corrector import Corrector

GRID = Grid.regular(9, 16)
STARTS, LEADS, NUMBERS, NAMES = (20160104, 20160108), (0, 24, 48), (1, 2, 3), ("t", "u", "v")
FORMULAS = ["advection(t@850)", "vorticity@850", "speed@850", "change(t@850, 24)", "change(vorticity@850, 48)"]
TASK = Task("toy", ["t@850"], ["t@850"], [24, 48], formulas=FORMULAS)
FIELDS = Task("fields", ["t@850", "u@850", "v@850"], ["t@850"], [0, 24, 48])
LOCAL = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 26, "bitsPerValue": 24}
PLACE = {"typeOfLevel": "isobaricInhPa", "level": 850}


def write(folder, without=()):
    """Write forecasts of random smooth fields, without the messages (name, start, lead, number) of `without`."""
    forecast = Encoder(GRID, **LOCAL, **PLACE, stream="enfh", type="pf", stepUnits="h")
    analysis = Encoder(GRID, **LOCAL, **PLACE, stream="oper", type="an")
    random = np.random.default_rng(3)
    with (folder / "ensemble").open("wb") as file:
        for name, start, lead, number in product(NAMES, STARTS, LEADS, NUMBERS):
            values = (270 if name == "t" else 0) + 10 * random.normal(size=GRID.shape)
            if (name, start, lead, number) not in without:
                keys = {"dataDate": start, "endStep": lead, "perturbationNumber": number, "shortName": name}
                file.write(forecast.encode(values, **keys))
    with (folder / "analysis").open("wb") as file:
        for day in range(STARTS[0], STARTS[-1] + 3):
            file.write(analysis.encode(270 + random.normal(size=GRID.shape), dataDate=day, shortName="t"))
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
            fields.read(init, k, values)
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


@pytest.mark.parametrize(
    "nested",
    [[], ["advection(absolute_vorticity@850)", "laplacian(laplacian(t@850))"], ["gradient(inverse_laplacian(t@850))"]],
    ids=str,
)
@pytest.mark.parametrize(
    "subset", [{"members": [2, 0]}, {"rows": slice(0, 1)}, {"rows": slice(3, 5), "columns": slice(4, 9)}], ids=str
)
def test_tiles_and_members_are_those_of_the_globe(archive, subset, nested):
    task = replace(TASK, formulas=nested or FORMULAS)
    whole, part = (arrays(ForecastDataset(archive, task, [2016], **options)) for options in ({}, subset))
    for key, values in whole.items():
        cut = values[subset.get("members", slice(None))]
        cut = cut[:, :, subset.get("rows", slice(None)), subset.get("columns", slice(None))]
        assert np.array_equal(part[key], cut, equal_nan=True)


def test_moments_are_those_of_the_formulas_of_members(archive):
    whole, moments = (arrays(ForecastDataset(archive, TASK, [2016], moments=flag)) for flag in (False, True))
    for key, values in whole.items():
        assert np.array_equal(moments[key], pseudo_members(values), equal_nan=True)


@pytest.mark.parametrize("moments", [False, True])
def test_a_store_holds_the_values_of_formulas(archive, tmp_path, moments):
    store = Store.write(archive, TASK, tmp_path, moments=moments)
    assert Store(tmp_path).contents == store.contents
    ours, theirs = (ForecastDataset(source, TASK, [2016], moments=moments) for source in (store, archive))
    assert ours.fingerprint == theirs.fingerprint
    assert ours.meanings == theirs.meanings
    for key, values in arrays(theirs).items():
        assert np.array_equal(arrays(ours)[key], values, equal_nan=True)
    other = Task("toy", ["t@850"], ["t@850"], [24, 48], formulas=["gradient(t@850)"])
    if moments:
        with pytest.raises(InputError, match=r"from which gradient\(t@850\) cannot be computed; make a store"):
            ForecastDataset(store, other, [2016], moments=True)
    else:
        first = (arrays(ForecastDataset(source, other, [2016])) for source in (store, archive))
        assert all(np.array_equal(one, two) for one, two in zip(*(each.values() for each in first), strict=True))


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


def test_correct_computes_the_formulas_of_its_corrector(archive, tmp_path):
    torch.manual_seed(0)
    spec = {"_target_": "models.networks.mlp.MLP", "width": 8, "depth": 1}
    corrector = Corrector(TASK, GRID, spec, torch.rand(3, *GRID.shape))
    corrector.normalizer.location[:1] = 270
    corrector.normalizer.scale.copy_(torch.tensor([10, 1e-4, 1e-5, 10, 10, 1e-5]))
    for values in corrector.model.state_dict().values():
        values.add_(0.1 * torch.randn_like(values))
    corrector.eval().save(tmp_path / "corrector.safetensors")
    loaded = Corrector.load(tmp_path / "corrector.safetensors")
    assert loaded.task == TASK
    correct(loaded, Path(archive.ensemble[0]), tmp_path / "out")
    found = select_variable(
        open_ensemble(tmp_path / "out", TASK.targets, TASK.lead_times, chunks=None), TASK.targets[0]
    )
    found = found.mean("number").values
    data = ForecastDataset(archive, TASK, [2016])
    for k, sample in enumerate(data):
        batch = type(sample)(*(tensor[None] for tensor in sample))._replace(static=loaded.static[None])
        with torch.no_grad():
            mean = loaded(batch).mean[0, 0]
            other = loaded(batch._replace(ensemble=batch.ensemble.index_fill(2, torch.tensor([1, 2]), 0))).mean[0, 0]
        np.testing.assert_allclose(found[k // 2, k % 2], mean, rtol=0, atol=2e-3)
        assert (mean - other).abs().max() > 0.1, "the formulas change the forecast"
