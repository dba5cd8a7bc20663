"""Channels at other lead times and of the analysis, from files in which every value encodes its position."""

from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from correction_runs import correct

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.formats.datasets import select_variable
from data_pipeline.formats.grib import Encoder
from data_pipeline.formats.open import open_ensemble
from data_pipeline.grid import Grid
from data_pipeline.statistics.training_forecasts import TrainingForecasts
from data_pipeline.store import Store
from data_pipeline.task import Task
from models.corrector import Corrector, narrow
from models.networks.features import Features

GRID = Grid.regular(5, 8)
STARTS = (20151228, 20151231, 20160104, 20160108)
NAMES = {"t": 200.0, "q": 300.0}
LEADS = (0, 24, 48)
NUMBERS = (1, 2, 3)
TASK = Task("toy", ["t@850", "q@850"], ["t@850"], [24, 48], [], ["q@850-24h", "t@850-24h", "t@850+0h"], ["t@850"])
PLAIN = Task("toy", ["t@850", "q@850"], ["t@850"], [24, 48])
LOCAL = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 26, "bitsPerValue": 24}
PLACE = {"typeOfLevel": "isobaricInhPa", "level": 850}
ROW = np.arange(5)[:, None] / 8 * np.ones(8)
"""Added to the rows of a field, so that they differ."""


def value(name, start, lead, number):
    """Return the base of the variable plus day of month, lead time in days and member as digits."""
    return NAMES[name] + start % 100 + lead / 240 + number / 100


def write(folder, without=(), analyses=(0, 24, 48), unknown=()):
    """Write an archive without some forecasts (start, lead) and without the analyses of `unknown` days."""
    forecast = Encoder(GRID, **LOCAL, **PLACE, stream="enfh", type="pf", stepUnits="h")
    analysis = Encoder(GRID, **LOCAL, **PLACE, stream="oper", type="an")
    with (folder / "ensemble").open("wb") as file:
        for start, lead, number, name in product(STARTS, LEADS, NUMBERS, NAMES):
            if (start, lead) not in without:
                keys = {"dataDate": start, "endStep": lead, "perturbationNumber": number, "shortName": name}
                file.write(forecast.encode(value(name, start, lead, number) + ROW, **keys))
    dates = {datetime.strptime(str(s), "%Y%m%d") + timedelta(hours=h) for s in STARTS for h in analyses}
    with (folder / "analysis").open("wb") as file:
        days = {int(f"{date:%Y%m%d}") for date in dates}
        for day in sorted(days - set(unknown)):
            for name, base in NAMES.items():
                file.write(analysis.encode(-base - day % 100 + ROW, dataDate=day, shortName=name))
    return Archive([f"{folder}/ensemble"], [f"{folder}/analysis"])


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return write(tmp_path_factory.mktemp("archive"))


def expected(start, lead, numbers=NUMBERS):
    """Return the first row of every channel, (M, C)."""
    return [
        [
            value("t", start, lead, n), value("q", start, lead, n), value("q", start, lead - 24, n),
            value("t", start, lead - 24, n), value("t", start, 0, n), -NAMES["t"] - start % 100,
        ]
        for n in numbers
    ]  # fmt: skip


def keys(dataset):
    """Return start (a date) and lead time of each sample."""
    return [(int(f"{datetime.fromtimestamp(int(s.init_time), UTC):%Y%m%d}"), int(s.lead_time)) for s in dataset]


def test_values_of_every_channel(archive):
    dataset = ForecastDataset(archive, TASK, [2015, 2016])
    assert [str(channel) for channel in TASK.channels] == [
        "t@850", "q@850", "q@850-24h", "t@850-24h", "t@850+0h", "t@850 analysis",
    ]  # fmt: skip
    assert keys(dataset) == list(product(STARTS, (24, 48)))
    for (start, lead), sample in zip(keys(dataset), dataset, strict=True):
        first = torch.tensor(expected(start, lead))[:, :, None].expand(-1, -1, 8)
        torch.testing.assert_close(sample.ensemble[:, :, 0], first, rtol=1e-6, atol=1e-4)
        rows = torch.from_numpy(ROW).float().expand_as(sample.ensemble)
        torch.testing.assert_close(sample.ensemble, first[:, :, None] + rows, rtol=1e-6, atol=1e-4)
        assert sample.mask.all()
        assert sample.mask.shape == (6, *GRID.shape)


@pytest.mark.parametrize(
    "subset", [{"members": [2, 0]}, {"rows": slice(1, 4), "columns": slice(2, 5)}, {"moments": True}], ids=str
)
def test_members_and_tiles_are_selected_in_all_channels(archive, subset):
    whole, part = (ForecastDataset(archive, TASK, [2015, 2016], **options) for options in ({}, subset))
    for ours, theirs in zip(part, whole, strict=True):
        values = theirs.ensemble[:, :, subset.get("rows", slice(None)), subset.get("columns", slice(None))]
        values = values[subset.get("members", [0, 1, 2])]
        if "moments" in subset:
            torch.testing.assert_close(ours.ensemble.mean(0), values.mean(0), rtol=1e-6, atol=0)
            torch.testing.assert_close(ours.ensemble.double().std(0), values.double().std(0), rtol=0, atol=1e-4)
            assert torch.equal(ours.ensemble[0, -1], ours.ensemble[1, -1]), "the analysis has no spread"
        else:
            assert torch.equal(ours.ensemble, values)
    assert part.nbytes == sum(tensor.nbytes for tensor in part[0]) - part.static.nbytes
    assert len({part.fingerprint, whole.fingerprint, ForecastDataset(archive, PLAIN, [2015, 2016]).fingerprint}) == 3


def test_starts_without_a_channel_are_left_out_and_counted(tmp_path):
    """The forecast of 4 January lacks the lead time 0."""
    made = write(tmp_path, without={(20160104, 0)})
    for task, there, count in (
        (Task("start", ["t@850"], ["t@850"], [48], [], ["t@850+0h"]), (20151231, 20160108), 1),
        (Task("earlier", ["t@850"], ["t@850"], [48], [], ["t@850-24h"]), (20151231, 20160104, 20160108), 0),
    ):
        dataset = ForecastDataset(made, task, [2016])
        assert keys(dataset) == [(start, 48) for start in there]
        assert dataset.ledger.left_out == count
        assert [(one.reason, one.channels) for one in dataset.ledger.omissions] == [("no_input", ("t@850+0h",))] * count
        training = TrainingForecasts(made, task, Dates.of_years([2016]))
        assert (len(training.keys), training.ledger) == (len(there), dataset.ledger)


def test_starts_without_their_analysis_are_left_out_and_counted(tmp_path):
    made = write(tmp_path, unknown={20160104})
    task = Task("analysis", ["t@850"], ["t@850"], [24, 48], [], [], ["t@850"])
    dataset = ForecastDataset(made, task, [2016])
    assert keys(dataset) == list(product((20151231, 20160108), (24, 48)))
    (line,) = dataset.ledger.lines("test")[1:]
    assert line.startswith("test: 2 left out with no input at another lead time, or no analysis at their start, first")
    assert line.endswith("2016-01-04T12:00 + 24 h (t@850 analysis)")
    training = TrainingForecasts(made, task, Dates.of_years([2016]))
    assert (len(training.keys), training.ledger) == (4, dataset.ledger)
    assert Store.plan(made, task, [2016]).ledger == dataset.ledger


def test_starts_without_any_analysis_are_refused(tmp_path):
    made = write(tmp_path, analyses=(24, 48))
    # No forecast starts at a time for which another one is valid, so there is no analysis at any start.
    task = Task("analysis", ["t@850"], ["t@850"], [24], [], [], ["t@850"])
    with pytest.raises(
        InputError, match=r"no forecast has the analysis of t@850 at its start: .*; add files, or remove"
    ):
        ForecastDataset(made, task, [2015, 2016])


def test_a_missing_field_at_another_lead_time_is_an_error_or_masked(tmp_path):
    made = write(tmp_path, without={(20160104, 0)})
    task = Task("toy", ["t@850"], ["t@850"], [24, 48], [], ["t@850-24h"])
    with pytest.raises(InputError, match="lacks t@850-24h of member 1 for the forecast of 2016-01-04T12:00:00 at 24"):
        ForecastDataset(made, task, [2016])
    masking = Archive(made.ensemble, made.analysis, missing="mask")
    samples = dict(zip(keys(found := ForecastDataset(masking, task, [2016])), found, strict=True))
    known = {key: sample.mask.all(2).all(1).tolist() for key, sample in samples.items()}
    assert known.pop((20160104, 24)) == [True, False]
    assert set(map(tuple, known.values())) == {(True, True)}


def test_a_member_without_another_lead_time_is_refused(tmp_path, archive):
    made = write(tmp_path, without=set(product(STARTS, [0])))
    forecast = Encoder(GRID, **LOCAL, **PLACE, stream="enfh", type="pf", stepUnits="h", shortName="t")
    with (tmp_path / "ensemble").open("ab") as file:
        for start, number in product(STARTS, NUMBERS[:2]):
            file.write(forecast.encode(ROW + 250, dataDate=start, endStep=0, perturbationNumber=number))
    with pytest.raises(InputError, match=r"t@850\+0h of the ensemble has no member 3, which the other inputs have"):
        ForecastDataset(made, Task("toy", ["t@850"], ["t@850"], [24], [], ["t@850+0h"]), [2016])


@pytest.mark.parametrize("moments", [False, True])
def test_a_store_has_the_channels_of_the_archive(archive, tmp_path, moments):
    store = Store.write(archive, TASK, tmp_path, [2016], moments=moments)
    assert Store(tmp_path).contents == store.contents
    ours, theirs = (ForecastDataset(source, TASK, [2016], moments=moments) for source in (store, archive))
    assert ours.fingerprint == theirs.fingerprint
    assert len(ours) == len(theirs) == 6
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    plain = [ForecastDataset(source, PLAIN, [2016], moments=moments) for source in (store, archive)]
    assert all(torch.equal(a.ensemble, b.ensemble) for a, b in zip(*plain, strict=True))
    later = Task("toy", ["t@850"], ["t@850"], [48], [], ["q@850+48h", "t@850+24h"])
    assert torch.equal(*(ForecastDataset(s, later, [2016], moments=moments)[1].ensemble for s in (store, archive)))
    with pytest.raises(InputError, match=r"has no q@850 at the lead time 72 h|has no lead time 72 h; it has 0, 24, 48"):
        store.ensemble_fields(PLAIN.inputs, [72])
    with pytest.raises(InputError, match=r"the truth in the store .* has no q@850; it has t@850"):
        store.analysis_fields(PLAIN.inputs)


def test_a_store_is_refused_for_channels_that_it_lacks(archive, tmp_path):
    task = Task("toy", ["t@850", "q@850"], ["t@850"], [48], [], ["t@850+0h"])
    store = Store.write(archive, task, tmp_path / "store")
    with pytest.raises(InputError, match="has no q@850 at the lead time 0 h; make a store for this task"):
        store.ensemble_fields(PLAIN.inputs, [0])
    (folder := tmp_path / "holes").mkdir()
    made = write(folder, without={(20160104, 0)})
    plan = Store.plan(made, task)
    assert plan.ledger.to_json()["no_input"] == {"count": 1, "first": "2016-01-04T12:00 + 48 h (t@850+0h)"}
    holes = Store.write(made, task, tmp_path / "other")
    assert len(ForecastDataset(holes, task, [2015, 2016])) == 3
    with pytest.raises(InputError, match="without 1 forecasts that lack a field and could be used for this task"):
        ForecastDataset(holes, Task("toy", ["t@850"], ["t@850"], [48]), [2016])


def test_a_batch_is_reduced_to_any_of_its_channels(archive):
    sample = ForecastDataset(archive, TASK, [2016])[0]
    batch = type(sample)(*(tensor[None] for tensor in sample))
    to = Task("part", ["t@850"], ["t@850"], [48], [], ["t@850+0h"], ["t@850"])
    found = narrow(batch, TASK, to)
    assert torch.equal(found.ensemble, batch.ensemble[:, :, [0, 4, 5]])
    assert torch.equal(found.mask, batch.mask[:, [0, 4, 5]])


def test_winds_have_parity_minus_one_in_every_channel():
    task = Task("wind", ["t@850", "u@850"], ["t@850"], [48], [], ["u@850+0h", "t@850+0h"], ["v@850", "t@850"])
    assert task.parity == (1, -1, -1, 1, -1, 1)
    assert Features(task, GRID).parity[:12] == (*task.parity, *[1] * 6)


def test_tasks_survive_json_and_other_tasks_keep_their_text():
    assert Task(**TASK.to_json()) == TASK
    assert list(PLAIN.to_json()) == ["name", "inputs", "targets", "lead_times", "static"]
    assert TASK.only_targets().channels == (TASK.channels[0],)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"other_leads": ["t@850"]}, r"cannot read 't@850' in other_leads; write t@850\+24h"),
        ({"other_leads": ["t@850-0h"]}, "cannot read 't@850-0h' in other_leads"),
        ({"other_leads": ["t@850+0h", "t@850+0h"]}, "other_leads must be different variables"),
        ({"other_leads": ["t@850-72h"]}, "t@850-72h is before the start of a forecast of 48 h; remove it"),
        ({"formulas": ["change(t@850, 72)"]}, "t@850-72h, which a formula needs, is before the start of every"),
        ({"formulas": ["t@850"]}, "'t@850' in formulas is no formula; write it in inputs or other_leads"),
        ({"other_leads": "t@850+0h"}, "other_leads must be a list"),
        ({"analysis": ["t@850", "t@850"]}, "analysis must be different variables"),
        ({"analysis": ["t@high"]}, "cannot read the variable 't@high'"),
    ],
)
def test_wrong_options_are_refused(change, sentence):
    with pytest.raises(InputError, match=sentence):
        Task(**(PLAIN.to_json() | change))


@pytest.fixture(scope="module")
def corrector():
    """A network that uses all channels, with random weights."""
    torch.manual_seed(0)
    made = Corrector(
        TASK, GRID, {"_target_": "models.networks.mlp.MLP", "width": 8, "depth": 1}, torch.rand(3, *GRID.shape)
    )
    means = torch.tensor([220.0, 320.0, 320.0, 220.0, 220.0, -220.0])
    made.normalizer.location.copy_(means[:, None, None].expand_as(made.normalizer.location))
    made.normalizer.scale.fill_(30)
    for values in made.model.state_dict().values():
        values.add_(0.1 * torch.randn_like(values))
    return made.eval()


def test_correct_reads_other_lead_times_from_its_input(archive, corrector, tmp_path):
    """The corrected members have the mean of the forecast for the same sample of the archive."""
    (source,), (analyses,) = (map(Path, files) for files in (archive.ensemble, archive.analysis))
    assert correct(corrector, source, tmp_path / "out", analysis=analyses).messages == 4 * 2 * 3
    opened = open_ensemble(tmp_path / "out", TASK.inputs, TASK.lead_times, chunks=None)
    found = select_variable(opened, TASK.targets[0]).mean("number")
    for (start, lead), sample in zip(keys(data := ForecastDataset(archive, TASK, [2015, 2016])), data, strict=True):
        batch = type(sample)(*(tensor[None] for tensor in sample))._replace(static=corrector.static[None])
        with torch.no_grad():
            mean = corrector(batch).mean[0, 0]
            other = corrector(batch._replace(ensemble=batch.ensemble.index_fill(2, torch.tensor([4, 5]), 250))).mean
        at = {"init_time": datetime.strptime(f"{start}12", "%Y%m%d%H"), "lead_time": lead}
        np.testing.assert_allclose(found.sel(at).values, mean, rtol=0, atol=1e-3)
        assert (mean - other).abs().min() > 0.01, "the analysis and the fields at the start change the forecast"


def test_correct_reports_missing_inputs(archive, corrector, tmp_path):
    (source,), (analyses,) = (map(Path, files) for files in (archive.ensemble, archive.analysis))
    with pytest.raises(InputError, match="reads the analysis of t@850 at the start; give its file with analysis=FILE"):
        correct(corrector, source, tmp_path / "out")
    write(tmp_path, unknown={20160104})
    with pytest.raises(InputError, match=r"lacks t@850 analysis for the forecast of 2016-01-04T12:00:00, one of 1"):
        correct(corrector, source, tmp_path / "out", analysis=tmp_path / "analysis")
    plain = Corrector(PLAIN, GRID, {"_target_": "models.statistical.raw.Raw"}, torch.rand(3, *GRID.shape))
    with pytest.raises(InputError, match="the corrector reads no analysis; remove analysis="):
        correct(plain, source, tmp_path / "out", analysis=analyses)
    assert not (tmp_path / "out").exists()
