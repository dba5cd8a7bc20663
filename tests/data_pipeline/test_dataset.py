"""Samples of GRIB files in which every value encodes its start, lead time and member."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset, batches
from data_pipeline.formats.grib import Encoder
from data_pipeline.grid import Grid
from data_pipeline.sample import forecast_times
from data_pipeline.split import Split
from data_pipeline.task import Task
from data_pipeline.tile_reader import complete_cells

GRID = Grid.regular(5, 8)
STARTS = (20151228, 20151231, 20160104)
LEADS = (24, 48)
TASK = Task("toy", ["2t", "sst"], ["2t"], LEADS, ["lsm"])
LAND = np.zeros(GRID.shape)
LAND[1:3, 2:5] = 1


def value(start, lead, number):
    """Return the value of a message: 280 plus day of month, lead time and member as digits."""
    return 280 + start % 100 + lead / 100 + number / 1000


def write(path, *messages):
    path.write_bytes(b"".join(messages))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archive")
    local = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 26, "typeOfLevel": "surface"}
    forecast = Encoder(GRID, **local, stream="enfh", type="pf", stepUnits="h", bitsPerValue=24)
    ensemble = []
    for start in STARTS:
        for lead in LEADS:
            for number in (1, 2, 3):
                keys = {"dataDate": start, "endStep": lead, "perturbationNumber": number}
                field = np.full(GRID.shape, value(start, lead, number))
                ensemble.append(forecast.encode(field, shortName="2t", **keys))
                ensemble.append(forecast.encode(np.where(LAND > 0, np.nan, field), shortName="sst", **keys))
    write(folder / "ensemble", *ensemble)
    analysis = Encoder(GRID, **local, stream="oper", type="an", shortName="2t", bitsPerValue=24)
    # 29, 30 December, 1, 2, 5 January: the start of 4 January has no analysis at 48 h.
    dates = (20151229, 20151230, 20160101, 20160102, 20160105)
    write(folder / "analysis", *(analysis.encode(np.full(GRID.shape, d % 10000 + 0.5), dataDate=d) for d in dates))
    write(folder / "static", Encoder(GRID, **local, shortName="lsm").encode(LAND, dataDate=20180101))
    return folder


@pytest.fixture(scope="module")
def archive(folder):
    return Archive([f"{folder}/ensemble"], [f"{folder}/analysis"], [f"{folder}/static"])


def cases(dataset):
    """Return day of the start and lead time of every sample."""
    return [
        (int(np.datetime64(int(sample.init_time), "s").astype(object).day), int(sample.lead_time)) for sample in dataset
    ]


def test_the_valid_time_decides_the_year(archive):
    assert cases(ForecastDataset(archive, TASK, [2015])) == [(28, 24), (28, 48)]
    assert cases(ForecastDataset(archive, TASK, [2016])) == [(31, 24), (31, 48), (4, 24)]


def test_values_of_a_sample(archive):
    sample = ForecastDataset(archive, TASK, [2016])[1]
    assert sample.ensemble.shape == (3, 2, *GRID.shape)
    for number in (1, 2, 3):
        torch.testing.assert_close(
            sample.ensemble[number - 1, 0], torch.full(GRID.shape, value(20151231, 48, number)), rtol=1e-6, atol=0
        )
    torch.testing.assert_close(sample.target, torch.full((1, *GRID.shape), 102.5))
    assert torch.equal(sample.mask[0], torch.ones(GRID.shape, dtype=torch.bool))
    assert torch.equal(sample.mask[1], torch.from_numpy(LAND == 0))
    assert torch.equal(sample.static[3], torch.from_numpy(LAND).float())
    # Longitude 90 E on the equator is the point (0, 1, 0).
    torch.testing.assert_close(sample.static[:3, 2, 2], torch.tensor([0.0, 0.0, 1.0]), atol=1e-6, rtol=0)


def test_batches_have_all_samples_in_order(archive):
    dataset = ForecastDataset(archive, TASK, [2016])
    sizes = [len(batch.target) for batch in batches(dataset, 2)]
    assert sizes == [2, 1]
    assert torch.equal(next(batches(dataset, 3)).lead_time, torch.tensor([24, 48, 24]))


def test_years_without_forecasts_are_refused(archive):
    with pytest.raises(InputError, match=r"valid in 1999-2000 .* starts between 2015-12-28.* and 2016-01-04"):
        ForecastDataset(archive, TASK, [1999, 2000])


def test_an_unknown_static_field_is_refused(archive):
    with pytest.raises(InputError, match="needs the static field sdor, the data source has lsm"):
        ForecastDataset(archive, Task("toy", ["2t"], ["2t"], LEADS, ["sdor"]), [2016])


def test_another_grid_of_the_analyses_is_refused(archive, folder, tmp_path):
    other = Encoder(Grid.regular(7, 8), centre="ecmf", typeOfLevel="surface", shortName="2t", type="an")
    write(tmp_path / "analysis", other.encode(np.zeros((7, 8)), dataDate=20160101))
    mixed = Archive([f"{folder}/ensemble"], [f"{tmp_path}/analysis"])
    with pytest.raises(InputError, match=r"the ensemble has 5 x 8 points.* the analysis 7 x 8 points"):
        ForecastDataset(mixed, TASK.only_targets(), [2016])


def equal(one, other):
    return all(x.numpy().tobytes() == y.numpy().tobytes() for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize(("members", "positions"), [(2, [0, 1]), ([2, 0], [2, 0]), ((1,), [1])])
def test_members_are_selected_by_number_or_position(archive, members, positions):
    whole, part = ForecastDataset(archive, TASK, [2016]), ForecastDataset(archive, TASK, [2016], members=members)
    assert part.members == len(positions)
    for k in range(3):
        assert equal(part[k], whole[k]._replace(ensemble=whole[k].ensemble[positions]))


@pytest.mark.parametrize("members", [0, 4, [], [0, 0], [3], [-1], 2.0, True, "2"])
def test_unknown_members_are_refused(archive, members):
    with pytest.raises(InputError, match=r"members must be a number from 1 to 3 or different positions from 0 to 2"):
        ForecastDataset(archive, TASK, [2016], members=members)


@pytest.mark.parametrize("rows", [slice(1, 3), slice(None, 1), slice(-2, None)])
def test_rows_are_selected_in_all_fields(archive, rows):
    whole, band = ForecastDataset(archive, TASK, [2016]), ForecastDataset(archive, TASK, [2016], rows=rows)
    assert band.grid == whole.grid == GRID
    assert range(5)[band.rows] == range(5)[rows]
    assert torch.equal(band.static, whole.static[:, rows])
    for k in range(3):
        cut = {name: getattr(whole[k], name)[..., rows, :] for name in ("ensemble", "mask", "static", "target")}
        assert equal(band[k], whole[k]._replace(**cut))


@pytest.mark.parametrize("rows", [slice(2, 2), slice(0, 4, 2), slice(4, 1, -1)])
def test_rows_must_be_consecutive(archive, rows):
    with pytest.raises(ValueError, match="rows and columns must be consecutive"):
        ForecastDataset(archive, TASK, [2016], rows=rows)


@pytest.mark.parametrize("subset", [{}, {"members": 1}, {"members": [2, 0], "rows": slice(1, 4)}], ids=str)
def test_moments_replace_the_ensemble(archive, subset):
    members = ForecastDataset(archive, TASK, [2016], **subset)
    moments = ForecastDataset(archive, TASK, [2016], **subset, moments=True)
    assert moments.members == members.members
    for ours, theirs in zip(moments, members, strict=True):
        known, ensemble = theirs.mask, theirs.ensemble.double()
        spread = ensemble.std(0) if len(ensemble) > 1 else torch.zeros_like(ensemble[0])
        assert len(ours.ensemble) == 2
        torch.testing.assert_close(ours.ensemble.double().mean(0)[known], ensemble.mean(0)[known], rtol=1e-7, atol=0)
        torch.testing.assert_close(ours.ensemble.double().std(0)[known], spread[known], rtol=0, atol=3e-5)
        assert equal(ours._replace(ensemble=theirs.ensemble), theirs)


def test_nbytes_is_the_size_of_a_sample_without_static_fields(archive):
    for subset in ({}, {"members": 2}, {"rows": slice(0, 2)}, {"moments": True}, {"moments": True, "members": 1}):
        dataset = ForecastDataset(archive, TASK, [2016], **subset)
        assert dataset.nbytes == sum(tensor.nbytes for tensor in dataset[0]) - dataset.static.nbytes


def test_the_fingerprint_depends_on_the_selection(archive):
    def fingerprint(task=TASK, dates=(2016,), **subset):
        return ForecastDataset(archive, task, dates, **subset).fingerprint

    subsets = [{"members": 2}, {"members": [1, 0]}, {"rows": slice(0, 2)}, {"moments": True}, {"dates": (2015, 2016)}]
    subsets += [{"task": TASK.only_targets()}, {}]
    assert len({fingerprint(**subset) for subset in subsets}) == len(subsets)
    assert fingerprint() == fingerprint(members=3) == fingerprint(rows=slice(0, 5)) == fingerprint(members=[0, 1, 2])


def test_threads_and_processes_read_the_same_samples(archive):
    dataset = ForecastDataset(archive, TASK, [2015, 2016])
    expected = list(dataset)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert all(map(equal, pool.map(dataset.__getitem__, range(len(dataset))), expected))
    assert all(map(equal, pickle.loads(pickle.dumps(dataset)), expected))


FLOATS = st.one_of(st.floats(width=32), st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -3e38]))


@given(arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)), elements=FLOATS))
def test_complete_cells_have_all_members(members):
    np.testing.assert_array_equal(complete_cells(members), np.isfinite(members).all(0))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"val": (2010, 2015)}, "data.split.val shares 2010"),
        ({"test": (2017, 2016)}, r"data.split.test must be \[first year, last year\] or \[first date, last date\]"),
        ({"train": ("1998", 2012)}, r"data.split.train must be \[first year, last year\]"),
    ],
)
def test_wrong_splits_are_refused(change, sentence):
    with pytest.raises(InputError, match=sentence):
        Split(**({"train": (1998, 2012), "val": (2013, 2014), "test": (2015, 2016)} | change))


def test_an_unknown_split_is_refused():
    with pytest.raises(InputError, match="there is no split 'dev'; choose one of train, val, test, held_out"):
        Split((1998, 2012), (2013, 2014), (2015, 2016)).dates("dev", [48])


def test_a_band_reads_only_its_rows(archive, monkeypatch):
    whole = ForecastDataset(archive, TASK, [2016], rows=slice(1, 5), columns=slice(2, 8))
    part, read = whole.band(slice(1, 3)), []
    fields, plain = type(part._ensemble), type(part._ensemble).read

    def spied(self, init, lead, out, rows=slice(None), members=None):
        read.append(rows)
        plain(self, init, lead, out, rows, members)

    monkeypatch.setattr(fields, "read", spied)
    assert len(part) == len(whole) == 3
    for own, sample in zip(part, whole, strict=True):
        for name in ("ensemble", "mask", "static", "target"):
            torch.testing.assert_close(
                getattr(own, name), getattr(sample, name)[..., 1:3, :], rtol=0, atol=0, equal_nan=True
            )
    assert [rows for rows in read if rows != whole.rows] == [slice(2, 4)] * 6
    assert part.fingerprint != whole.fingerprint
    assert part.nbytes < whole.nbytes


def test_times_are_known_without_reading(archive, monkeypatch):
    dataset = ForecastDataset(archive, TASK, [2015, 2016])
    samples = list(dataset)
    monkeypatch.setattr(type(dataset._ensemble), "read", None)
    starts, leads = forecast_times(dataset)
    assert starts.tolist() == [int(sample.init_time) for sample in samples]
    assert leads.tolist() == [int(sample.lead_time) for sample in samples]
