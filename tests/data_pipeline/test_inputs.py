"""Channels at other lead times and of the analysis."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from correction_runs import correct
from weather_files import forecasts_of, weather, write_grib

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.formats.datasets import select_variable
from data_pipeline.formats.open import open_ensemble
from data_pipeline.grid import Grid
from data_pipeline.statistics.training_forecasts import TrainingForecasts
from data_pipeline.store import Store
from data_pipeline.task import Task
from models.corrector import Corrector, narrow
from models.networks.features import Features

GRID = Grid.regular(5, 8)
STARTS = np.array(["2015-12-28", "2015-12-31", "2016-01-04", "2016-01-08"], "M8[ns]")
TASK = Task("toy", ["t@850", "q@850"], ["t@850"], [24, 48], [], ["q@850-24h", "t@850-24h", "t@850+0h"], ["t@850"])
PLAIN = Task("toy", ["t@850", "q@850"], ["t@850"], [24, 48])


def fields():
    """Return forecasts and analyses of t and q on one level."""
    parts = weather((0, 24, 48), (1, 2, 3), (850,), STARTS, (), GRID)
    return [parts[name].assign(q=parts[name].t[..., ::-1, :] + 100) for name in ("ensemble", "analysis")]


def write(folder, without=(), unknown=()):
    """Write an archive without some forecasts (start, lead time) or members, and without analyses of `unknown` days."""
    forecasts, analyses = fields()
    for place in without:
        for name in "tq":
            forecasts[name].loc[place] = np.nan
    write_grib(folder / "ensemble", "ensemble", forecasts, bitsPerValue=24)
    write_grib(folder / "analysis", "analysis", analyses.drop_sel(time=np.array(unknown, "M8[ns]")), bitsPerValue=24)
    return Archive([f"{folder}/ensemble"], [f"{folder}/analysis"])


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return write(tmp_path_factory.mktemp("archive"))


def test_values_of_every_channel(archive):
    forecasts, analyses = fields()
    dataset = ForecastDataset(archive, TASK, [2015, 2016])
    assert [str(channel) for channel in TASK.channels] == [
        "t@850", "q@850", "q@850-24h", "t@850-24h", "t@850+0h", "t@850 analysis",
    ]  # fmt: skip
    assert forecasts_of(dataset) == list(product(STARTS.astype("M8[D]").astype(str), (24, 48)))
    for (start, lead), sample in zip(forecasts_of(dataset), dataset, strict=True):
        read = (("t", lead), ("q", lead), ("q", lead - 24), ("t", lead - 24), ("t", 0))
        channels = [forecasts[name].loc[start, at].squeeze() for name, at in read]
        channels.append(0 * channels[0] + analyses.t.loc[start].squeeze())
        np.testing.assert_allclose(sample.ensemble, np.stack(channels, axis=1), rtol=1e-6)
        assert sample.mask.all()
        assert sample.mask.shape == (6, *GRID.shape)


def test_starts_without_a_channel_are_left_out_and_counted(tmp_path):
    """The forecast of 4 January lacks the lead time 0."""
    made = write(tmp_path, without=[("2016-01-04", 0)])
    for task, there, count in (
        (Task("start", ["t@850"], ["t@850"], [48], [], ["t@850+0h"]), ("2015-12-31", "2016-01-08"), 1),
        (Task("earlier", ["t@850"], ["t@850"], [48], [], ["t@850-24h"]), ("2015-12-31", "2016-01-04", "2016-01-08"), 0),
    ):
        dataset = ForecastDataset(made, task, [2016])
        assert forecasts_of(dataset) == [(start, 48) for start in there]
        assert dataset.ledger.left_out == count
        assert [(one.reason, one.channels) for one in dataset.ledger.omissions] == [("no_input", ("t@850+0h",))] * count
        training = TrainingForecasts(made, task, Dates.of_years([2016]))
        assert (len(training.keys), training.ledger) == (len(there), dataset.ledger)


def test_starts_without_their_analysis_are_left_out_and_counted(tmp_path):
    made = write(tmp_path, unknown=["2016-01-04"])
    task = Task("analysis", ["t@850"], ["t@850"], [24, 48], [], [], ["t@850"])
    dataset = ForecastDataset(made, task, [2016])
    assert forecasts_of(dataset) == list(product(("2015-12-31", "2016-01-08"), (24, 48)))
    (line,) = dataset.ledger.lines("test")[1:]
    assert "2 left out with no input at another lead time, or no analysis at their start" in line
    assert line.endswith("2016-01-04T12:00 + 24 h (t@850 analysis)")
    assert TrainingForecasts(made, task, Dates.of_years([2016])).ledger == dataset.ledger
    assert Store.plan(made, task, [2016]).ledger == dataset.ledger


def test_a_member_without_another_lead_time_is_refused(tmp_path):
    made = write(tmp_path, without=[(start, 0, 3) for start in STARTS])
    with pytest.raises(InputError, match=r"t@850\+0h of the ensemble has no member 3, which the other inputs have"):
        ForecastDataset(made, Task("toy", ["t@850"], ["t@850"], [24], [], ["t@850+0h"]), [2016])


def test_a_store_is_refused_for_channels_that_it_lacks(archive, tmp_path):
    task = Task("toy", ["t@850", "q@850"], ["t@850"], [48], [], ["t@850+0h"])
    store = Store.write(archive, task, tmp_path / "store")
    with pytest.raises(InputError, match="has no q@850 at the lead time 0 h; make a store for this task"):
        store.ensemble_fields(PLAIN.inputs, [0])
    with pytest.raises(InputError, match=r"the truth in the store .* has no q@850; it has t@850"):
        store.analysis_fields(PLAIN.inputs)
    (folder := tmp_path / "holes").mkdir()
    holes = Store.write(write(folder, without=[("2016-01-04", 0)]), task, tmp_path / "other")
    with pytest.raises(InputError, match="without 1 forecasts that lack a field and could be used for this task"):
        ForecastDataset(holes, Task("toy", ["t@850"], ["t@850"], [48]), [2016])


def test_a_batch_is_reduced_to_any_of_its_channels(archive):
    sample = ForecastDataset(archive, TASK, [2016])[0]
    batch = type(sample)(*(tensor[None] for tensor in sample))
    found = narrow(batch, TASK, Task("part", ["t@850"], ["t@850"], [48], [], ["t@850+0h"], ["t@850"]))
    assert torch.equal(found.ensemble, batch.ensemble[:, :, [0, 4, 5]])
    assert torch.equal(found.mask, batch.mask[:, [0, 4, 5]])


def test_winds_have_parity_minus_one_in_every_channel():
    task = Task("wind", ["t@850", "u@850"], ["t@850"], [48], [], ["u@850+0h", "t@850+0h"], ["v@850", "t@850"])
    assert task.parity == (1, -1, -1, 1, -1, 1)
    assert Features(task, GRID).parity[:12] == (*task.parity, *[1] * 6)


OF_ALL_KINDS = replace(TASK, formulas=["eastward_gradient(q@850)", "change(t@850, 24)"])


@pytest.fixture(scope="module")
def corrector(tmp_path_factory):
    """A network that uses channels of all kinds, with random weights."""
    torch.manual_seed(0)
    network = {"_target_": "models.networks.mlp.MLP", "width": 8, "depth": 1}
    made = Corrector(OF_ALL_KINDS, GRID, network, torch.rand(3, *GRID.shape))
    made.normalizer.location.fill_(280)
    made.normalizer.location[[1, 2]] = 380
    made.normalizer.location[6:] = 0
    made.normalizer.scale.fill_(10)
    for values in made.model.state_dict().values():
        values.add_(0.1 * torch.randn_like(values))
    path = tmp_path_factory.mktemp("corrector") / "corrector.safetensors"
    made.eval().save(path)
    return Corrector.load(path)


def test_correct_reads_and_computes_all_inputs(archive, corrector, tmp_path):
    """The corrected members have the mean of the forecast for the same sample of the archive."""
    (source,), (analyses,) = (map(Path, files) for files in (archive.ensemble, archive.analysis))
    assert correct(corrector, source, tmp_path / "out", analysis=analyses).messages == 4 * 2 * 3
    opened = open_ensemble(tmp_path / "out", TASK.inputs, TASK.lead_times, chunks=None)
    found = select_variable(opened, TASK.targets[0]).mean("number")
    data = ForecastDataset(archive, OF_ALL_KINDS, [2015, 2016])
    for (start, lead), sample in zip(forecasts_of(data), data, strict=True):
        batch = type(sample)(*(tensor[None] for tensor in sample))._replace(static=corrector.static[None])
        with torch.no_grad():
            mean = corrector(batch).mean[0, 0]
            others = [batch.ensemble.index_fill(2, torch.tensor([k]), 250) for k in (4, 5, 7)]
            others = [corrector(batch._replace(ensemble=each)).mean for each in others]
        at = {"init_time": np.datetime64(f"{start}T12"), "lead_time": lead}
        np.testing.assert_allclose(found.sel(at).values, mean, rtol=0, atol=1e-3)
        differences = [(mean - other).abs().max() for other in others]
        assert min(differences) > 0.1, "fields at the start, the analysis and formulas change the forecast"


def test_correct_reports_missing_inputs(archive, corrector, tmp_path):
    (source,), (analyses,) = (map(Path, files) for files in (archive.ensemble, archive.analysis))
    with pytest.raises(InputError, match="reads the analysis of t@850 at the start; give its file with analysis=FILE"):
        correct(corrector, source, tmp_path / "out")
    write(tmp_path, unknown=["2016-01-04"])
    with pytest.raises(InputError, match=r"lacks t@850 analysis for the forecast of 2016-01-04T12:00:00, one of 1"):
        correct(corrector, source, tmp_path / "out", analysis=tmp_path / "analysis")
    plain = Corrector(PLAIN, GRID, {"_target_": "models.statistical.raw.Raw"}, torch.rand(3, *GRID.shape))
    with pytest.raises(InputError, match="the corrector reads no analysis; remove analysis="):
        correct(plain, source, tmp_path / "out", analysis=analyses)
    assert not (tmp_path / "out").exists()
