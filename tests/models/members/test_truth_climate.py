"""Comparisons with the climate of the truth: published numbers, the scores of `evaluate`, and dry climates."""

from datetime import datetime, timedelta

import numpy as np
import pytest
import torch
import xarray as xr
from correction_runs import random_corrector
from predictions import NormalPrediction
from published_extremes import CLIMATE, MEMBERS
from station_files import StationFiles

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import grid_of_files
from data_pipeline.grid import Grid
from data_pipeline.protocols import WHOLE
from data_pipeline.statistics.efi import CROSSING_LEVELS
from data_pipeline.task import Task, Variable
from evaluation.scores.extremes import crossing_point, index_of, shift_of_tails
from models.corrected_files.correct_files import correct_files
from models.correction.guards import Guard
from models.distribution import Normal, Quantiles
from models.engines.families import EnsembleArrays
from models.engines.torch_engine import TorchEngine
from models.members import truth_climate
from models.members.options import CorrectionOptions
from models.members.past import Past
from models.members.products import product_fields, products_of_tasks
from models.members.truth_climate import TruthClimate
from models.parallel.domain import Domain
from models.parallel.single_process import SingleProcess

T2M, RAIN = Variable.parse("2t"), Variable.parse("tp")
GRID = Grid.regular(6, 8)
VALID = np.datetime64("2020-01-03T12", "s")


def climate_of(values, target=T2M):
    """Return a climate with quantiles (L, cells) of a target at `CROSSING_LEVELS`."""
    return TruthClimate(np.asarray(values, np.float32)[:, None, None], None, (target,))


def test_published_numbers_of_earthkit_meteo():
    """The shifts need 4 percentiles only; the index is the published one up to F between the percentiles."""
    percentiles = np.interp(CROSSING_LEVELS, np.linspace(0, 1, 101), np.sort(np.array(CLIMATE) / 1e5))[:, None]
    for level, k in ((0.01, 1), (0.1, 10), (0.9, 90), (0.99, 99)):
        percentiles[np.abs(CROSSING_LEVELS - level).argmin()] = CLIMATE[k] / 1e5
    climate, members = climate_of(percentiles), np.array(MEMBERS)[:, None, None, None] / 1e5 + 3
    prediction = EnsembleArrays(members)
    assert climate.index(prediction).item() == pytest.approx(-0.1838425, abs=2e-3)
    for level, expected in ((0.9, -2.14617638), (0.1, -1.3086723)):
        shift = climate.shift(prediction.quantiles(np.array([level]))[0], level)
        assert shift.item() == pytest.approx(expected, abs=2e-4)  # quantiles of a climate are in single precision


def test_comparisons_are_those_of_evaluate():
    random = np.random.default_rng(0)
    mean, spread = 280 + 3 * random.standard_normal(50), random.uniform(0.3, 4, 50)
    values = np.quantile(280 + 2 * random.standard_normal((400, 50)), CROSSING_LEVELS, 0)
    climate, prediction = climate_of(values), NormalPrediction(mean[None, None], spread[None, None])
    texts = ["efi", "sot 90", "sot 10", "cpf"]
    (products,) = products_of_tasks(texts, [Task("toy", ["2t"], ["2t"], [24])])
    found = product_fields(products, prediction, np.ones((1, 1, 50), bool), (T2M,), climate)
    forecast = Normal(torch.from_numpy(mean), torch.from_numpy(spread))
    levels = torch.from_numpy(CROSSING_LEVELS)
    past = Quantiles(torch.from_numpy(values)[1:-1], levels[1:-1])
    np.testing.assert_allclose(found[0, 0], index_of(forecast, past), atol=0.01)
    for field, tail in zip(found[1:3], ((0.9, 0.99), (0.1, 0.01)), strict=True):
        np.testing.assert_allclose(field[0], shift_of_tails(forecast, past, *tail), atol=1e-3)
    near = np.abs(found[3, 0] - crossing_point(forecast, past).numpy()) < 0.01
    assert near.mean() > 0.9
    assert {"efi", "sot_90", "sot_10", "cpf"} == {one.suffix for one in products}


def rain(dry):
    """Quantiles of rain (m) with a probability of 0."""
    return np.maximum(0, np.expm1(np.maximum(CROSSING_LEVELS - dry, 0) * 3)) / 100


@pytest.mark.parametrize("dry", [0.0, 0.3, 0.8, 1.0])
def test_a_dry_climate_has_no_tail_and_no_dry_crossing(dry):
    climate, none = climate_of(rain(dry)[:, None], RAIN), EnsembleArrays(np.zeros((10, 1, 1, 1)))
    much = EnsembleArrays(np.full((10, 1, 1, 1), 0.5))
    assert climate.index(much).item() == pytest.approx(1 if dry < 1 else 0)
    p = np.sin((np.arange(100_000) + 0.5) / 100_000 * np.pi / 2) ** 2  # equally spaced for dp / sqrt(p (1 - p))
    wet = p[p > dry + np.log1p(0.01) / 3]  # more than 0.1 mm
    index = np.sum(wet - 1) / np.sum(wet) if dry < 1 else 0
    assert climate.index(none).item() == pytest.approx(index, abs=0.02)
    for level, known in ((0.9, dry < 0.99), (0.1, dry < 0.1)):
        shifts = [climate.shift(one.quantiles(np.array([level]))[0], level).item() for one in (none, much)]
        assert [np.isfinite(one) for one in shifts] == [known, known]
    assert climate.crossing(much).item() == 1
    assert climate.crossing(none).item() == 0 if dry < 0.5 else np.isnan(climate.crossing(none).item())


class Analyses:
    """Twelve-hourly fields of 2t: the year, the day of the year and the hour as one number; a cell has few values."""

    variables, grid = (T2M,), GRID

    def __init__(self, first, last):
        start, end = datetime(first, 1, 1), datetime(last, 12, 31, 12)
        times = [start + timedelta(hours=n) for n in range(0, int((end - start).total_seconds() // 3600) + 1, 12)]
        self.init_times = np.array(times, "datetime64[s]")
        self.cells = np.arange(len(times))[:, None, None, None]

    def read(self, wanted, out, window=WHOLE):
        seconds = self.init_times[wanted.item()].astype(np.int64)
        field = np.random.default_rng(int(seconds)).normal(size=GRID.shape)
        field[4, 5] = np.nan if seconds % 7 else 1.0
        out[...] = field[window]


def test_the_climate_of_a_valid_time_is_that_of_its_season_hour_and_other_years(monkeypatch):
    past = Past(Analyses(2014, 2020), (24,), "history=past.grib")
    expected = []
    for time, cell in zip(past.analyses.init_times.tolist(), past.analyses.cells[:, 0], strict=True):
        near = min(abs(time - datetime(time.year + turn, 1, 3, 12)) for turn in (0, 1)) <= timedelta(days=15)
        if near and time.hour == 12 and abs(time - datetime(2020, 1, 3, 12)) > timedelta(days=15):
            past.analyses.read(cell, out := np.empty(GRID.shape), (slice(None), slice(None)))
            expected.append((time, out))
    domain = Domain.of(GRID)
    found = TruthClimate.of(past, VALID, (T2M,), domain)
    assert found.sample == (min(expected)[0], 7, 31, len(expected))
    values = np.quantile([field for _, field in expected], CROSSING_LEVELS, 0)
    np.testing.assert_allclose(found.values[:, 0], values, rtol=1e-5, atol=1e-6)
    assert np.isnan(found.values[:, 0, 4, 5]).all()
    monkeypatch.setattr(truth_climate, "BAND_BYTES", 8 * len(expected) * 8 * 2)
    np.testing.assert_array_equal(TruthClimate.of(past, VALID, (T2M,), domain).values, found.values)
    for rank in range(4):
        tile = Domain(GRID, (0, 2, 6), (0, 5, 8), rank)
        part = TruthClimate.of(past, VALID, (T2M,), tile)
        np.testing.assert_array_equal(part.values, found.values[:, :, tile.tile[0], tile.tile[1]])
    for years, hour, count in (((2018, 2020), 12, 62), ((2014, 2020), 6, 0)):
        few = Past(Analyses(*years), (24,), "history=past.grib")
        sentence = f"history=past.grib has {count} analyses within 15 days .* needs 100; add more years, or leave"
        with pytest.raises(InputError, match=sentence):
            TruthClimate.of(few, VALID - np.timedelta64(12 - hour, "h"), (T2M,), domain)


def test_stations_have_their_own_climate(tmp_path):
    """The shift of tails by hand from the file's own quantile; one station has no past."""
    random, times = np.random.default_rng(3), np.arange("2010-01-01", "2018-01-01", dtype="datetime64[D]")
    truth = random.normal(8, 5, (len(times), 3))
    truth[:, 2] = np.nan
    members = {"t2m": random.normal(9, 4, (1, 1, 6, 3))}
    places = [50.0, 51.0, 52.0], [10.0, 11.0, 12.0], [100.0, 200.0, 300.0]
    start = np.array(["2020-06-10"], "datetime64[h]")
    files = StationFiles(["a", "b", "c"], *places, start, [24], members, {"t2m": "degC"}, times, "t2m", truth)
    folder = files.write(tmp_path / "files")
    source, task = folder / "ensemble.nc", Task("toy", ["2t"], ["2t"], [24], static=[])
    spec = {"_target_": "models.statistical.emos.EMOS"}
    corrector = random_corrector(task, spec, grid_of_files([source]))
    engine = TorchEngine(corrector, Domain.of(corrector.grid), "cpu")
    options = CorrectionOptions(products=("sot 90", "quantile 0.9"), history=(str(folder / "analysis.nc"),))
    done = correct_files([engine], [source], tmp_path / "out.nc", SingleProcess(), options, guards=[Guard("raw")])
    assert any(note.startswith("sot 90 of 2t is missing in 1 cells of 1 forecast: the climate") for note in done.notes)
    days = [f"{day:%m-%d}" for day in (datetime(2020, 6, 11) + timedelta(days=n) for n in range(-15, 16))]
    past = truth[[str(time)[5:] in days for time in times]]
    near, far = np.quantile(past, [0.9, 0.99], 0)
    with xr.open_dataset(tmp_path / "out.nc") as found:
        expected = (found.t2m_quantile.values.ravel() - far) / (far - near)
        np.testing.assert_allclose(found.t2m_sot_90.values.ravel(), expected, rtol=1e-4)


def test_products_that_compare_need_history_and_a_history_needs_a_reader():
    corrector = type("Corrector", (), {"task": Task("toy", ["2t"], ["2t"], [24]), "noise": None})
    with pytest.raises(InputError, match="products: efi, sot and cpf compare with the climate of the truth; give past"):
        CorrectionOptions(products=("mean", "sot 10")).check(corrector)
    CorrectionOptions(products=("cpf",), history=("past.grib",)).check(corrector)
    with pytest.raises(InputError, match="members=ecc-q reads no past analyses; remove history"):
        CorrectionOptions(products=("mean",), history=("past.grib",))
    with pytest.raises(InputError, match="members=ecc-q reads no past forecasts; remove reforecasts"):
        CorrectionOptions(products=("efi",), reforecasts=("past.grib",))
    with pytest.raises(InputError, match="'sot 95' must be sot 90 or sot 10"):
        products_of_tasks(["sot 95"], [corrector.task])
