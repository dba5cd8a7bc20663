"""Samples of GRIB files: their values, times, members and tiles."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from weather_files import OUTER, forecasts_of, open_files, weather, write_grib

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import Grid
from data_pipeline.protocols import Fields
from data_pipeline.sample import forecast_times
from data_pipeline.samples.pseudo_members import complete_cells
from data_pipeline.task import Task

GRID = Grid.regular(5, 8)
TASK = Task("toy", ["2t", "sst"], ["2t"], [24, 48], ["lsm"])
STARTS = np.array(["2015-12-28", "2015-12-31", "2016-01-04"], "M8[ns]")
WEATHER = weather(TASK.lead_times, (1, 2, 3), (), STARTS, ("2t", "sst"), GRID)
LAND = np.zeros(GRID.shape)
LAND[1:3, 2:5] = 1


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Fields of the sea are missing on land; the start of 4 January has no analysis at 48 h."""
    folder = tmp_path_factory.mktemp("archive")
    forecasts = WEATHER["ensemble"].assign(sst=WEATHER["ensemble"].sst.where(LAND == 0))
    analyses = WEATHER["analysis"].drop_vars("sst").isel(time=slice(-1))
    static = WEATHER["static"].assign(lsm=(["latitude", "longitude"], LAND))
    for part, data in zip(OUTER, (forecasts, analyses, static), strict=True):
        write_grib(folder / part, part, data, bitsPerValue=24)
    return open_files(folder)


def test_the_valid_time_decides_the_year(archive):
    first, second, third = STARTS.astype("M8[D]").astype(str)
    assert forecasts_of(ForecastDataset(archive, TASK, [2015])) == [(first, 24), (first, 48)]
    assert forecasts_of(ForecastDataset(archive, TASK, [2016])) == [(second, 24), (second, 48), (third, 24)]


def test_values_of_a_sample(archive):
    sample = ForecastDataset(archive, TASK, [2016])[1]
    assert sample.ensemble.shape == (3, 2, *GRID.shape)
    np.testing.assert_allclose(sample.ensemble[:, 0], WEATHER["ensemble"]["2t"][1, 1], rtol=1e-6)
    np.testing.assert_allclose(sample.target[0], WEATHER["analysis"]["2t"][3], rtol=1e-6)
    assert torch.equal(sample.mask[0], torch.ones(GRID.shape, dtype=torch.bool))
    assert torch.equal(sample.mask[1], torch.from_numpy(LAND == 0))
    assert torch.equal(sample.static[3], torch.from_numpy(LAND).float())
    # Longitude 90 E on the equator is the point (0, 1, 0).
    torch.testing.assert_close(sample.static[:3, 2, 2], torch.tensor([0.0, 0.0, 1.0]), atol=1e-6, rtol=0)


def test_years_without_forecasts_and_unknown_members_are_refused(archive):
    with pytest.raises(InputError, match=r"valid in 1999-2000 .* starts between 2015-12-28.* and 2016-01-04"):
        ForecastDataset(archive, TASK, [1999, 2000])
    for members in (0, 4, [], [0, 0], [3], [-1], 2.0, True, "2"):
        with pytest.raises(InputError, match=r"members must be a number from 1 to 3 or different positions from 0 to"):
            ForecastDataset(archive, TASK, [2016], members=members)


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


FLOATS = st.one_of(st.floats(width=32), st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -3e38]))


@given(arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)), elements=FLOATS))
def test_complete_cells_have_all_members(members):
    np.testing.assert_array_equal(complete_cells(members), np.isfinite(members).all(0))


def test_a_band_reads_only_its_rows(archive, monkeypatch):
    whole = ForecastDataset(archive, TASK, [2016], rows=slice(1, 5), columns=slice(2, 8))
    part, read = whole.band(slice(1, 3)), []
    plain = Fields.read

    def spied(self, wanted, out, window):
        read.append(window[0])
        plain(self, wanted, out, window)

    monkeypatch.setattr(Fields, "read", spied)
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
    monkeypatch.setattr(Fields, "read", None)
    starts, leads = forecast_times(dataset)
    assert starts.tolist() == [int(sample.init_time) for sample in samples]
    assert leads.tolist() == [int(sample.lead_time) for sample in samples]
