"""The Schaake shuffle: chosen past starts by brute force over all dates, and the rank order of the analyses."""

from datetime import datetime, timedelta

import numpy as np
import pytest
import torch
from correction_runs import random_corrector, read_values, write_members
from grib_parts import GRID as FILE_GRID
from grib_parts import KEYS
from predictions import NormalPrediction, raw_forecast
from scipy.stats import norm

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import open_ensemble
from data_pipeline.grid import Grid
from data_pipeline.protocols import WHOLE
from data_pipeline.task import Task, Variable
from data_pipeline.writing import Encoder
from models.corrected_files.correct_files import correct_files
from models.corrector import Corrector
from models.engines.onnx_engine import OnnxEngine
from models.engines.onnx_export import export
from models.engines.torch_engine import TorchEngine
from models.members.members import corrected_members
from models.members.methods import METHODS
from models.members.options import CorrectionOptions
from models.members.past import Past
from models.parallel.domain import Domain
from models.parallel.single_process import SingleProcess
from models.provenance.noise import Noise

GRID = Grid.regular(60, 60)
START = np.datetime64("2016-01-03T00", "s")


class Analyses:
    """Fields of one variable whose value is a random number for each time and cell."""

    variables, grid = (Variable.parse("10u"),), GRID

    def __init__(self, times):
        self.init_times = np.array(times, "datetime64[s]")
        self.cells = np.arange(len(times))[:, None, None, None]

    def read(self, wanted, out, window=WHOLE):
        seed = int(self.init_times[wanted.item()].astype(np.int64))
        out[...] = np.random.default_rng(seed).normal(size=GRID.shape)[window[0]][..., window[1]]


def times(first=2010, last=2016, hours=12, without=()):
    start, end = datetime(first, 1, 1), datetime(last, 12, 31)
    every = [start + timedelta(hours=n) for n in range(0, int((end - start).total_seconds() // 3600) + 1, hours)]
    return [time for time in every if time not in without]


def past(leads=(24, 48), **options):
    return Past(Analyses(times(**options)), leads, "history=past.grib")


def test_chosen_starts_are_the_nearest_in_season_without_the_forecast_itself():
    without = [datetime(2012, 1, 5), datetime(2013, 1, 4, 12)]
    chosen = past(without=without).starts(START, 14).astype(datetime).tolist()
    there = set(times(without=without))
    start = datetime(2016, 1, 3)
    good = []
    for time in (datetime(2009, 12, 1) + timedelta(days=n) for n in range(2700)):
        analysed = all(time + timedelta(hours=lead) in there for lead in (24, 48))
        if analysed and abs(time - start) > timedelta(days=15):
            distance = min(abs((time - time.replace(month=1, day=3) - timedelta(days=turn)).days) for turn in (0, 365))
            good.append((distance, time))
    assert len(set(chosen)) == 14
    assert set(chosen) <= {time for _, time in good}
    furthest = max(distance for distance, time in good if time in chosen)
    assert {time for distance, time in good if distance < furthest} <= set(chosen)
    assert all(time + timedelta(hours=24) != without[0] for time in chosen)
    with pytest.raises(InputError, match=r"past.grib has analyses after 0 past starts .* 3 are needed; add more years"):
        past(first=2016).starts(np.datetime64("2016-06-01T06", "s"), 3)


def forecast(M, lead=24):
    return raw_forecast(np.random.default_rng(7).normal(size=(M, 1, *GRID.shape)), lead, START)


def made(history, raw, **options):
    chosen = CorrectionOptions(members="schaake", history=("past.grib",), **options)
    normal = NormalPrediction(np.zeros((1, *GRID.shape)), np.ones((1, *GRID.shape)))
    return corrected_members(normal, raw, history.analyses.variables, raw.mask, Domain.of(GRID), chosen, history)


@pytest.mark.parametrize(("lead", "count"), [(24, None), (48, None), (24, 3), (24, 9)])
def test_members_have_the_quantiles_in_the_rank_order_of_the_analyses(lead, count):
    history = past()
    members = made(history, forecast(5, lead), member_count=count)
    M = count or 5
    assert len(members) == M
    levels = (np.arange(M) + 0.5) / M
    analyses = []
    for start in history.starts(START, M):
        place = history.analyses.init_times.tolist().index((start + np.timedelta64(lead, "h")).tolist())
        field = np.empty((1, 1, *GRID.shape))
        history.analyses.read(history.analyses.cells[place, 0], field)
        analyses.append(field[0])
    ranks = np.array(analyses).argsort(0).argsort(0)
    np.testing.assert_allclose(members, norm.ppf(levels)[ranks], rtol=1e-12, atol=1e-12)


def test_corrected_messages_have_the_rank_order_of_analyses_in_files(tmp_path):
    """The whole way: GRIB forecasts and analyses in, corrected GRIB out."""
    leads, members = (24,), 4
    analysis = Encoder(FILE_GRID, **KEYS, type="an", stream="oper")
    random = np.random.default_rng(1)
    fields = {("2t", 20200101, 24, n): 280 + random.normal(size=FILE_GRID.shape) for n in range(1, members + 1)}
    write_members(tmp_path / "input", fields)
    analysed = {year: 280 + random.normal(size=FILE_GRID.shape) for year in range(2014, 2018)}
    with (tmp_path / "past").open("wb") as file:
        for year, field in analysed.items():
            file.write(analysis.encode(field, shortName="2t", dataDate=10_000 * year + 102, endStep=0))
    emos = {"_target_": "models.statistical.emos.EMOS"}
    corrector = Corrector(Task("toy", ["2t"], ["2t"], leads), FILE_GRID, emos, torch.zeros(3, *FILE_GRID.shape)).eval()
    options = CorrectionOptions(members="schaake", history=(str(tmp_path / "past"),))
    correct_files([TorchEngine(corrector)], [tmp_path / "input"], tmp_path / "out", SingleProcess(), options)
    values = read_values(tmp_path / "out")
    past = np.array([analysed[year] for year in (2017, 2016, 2015, 2014)])  # the latest first
    higher = past[:, None] > past + 1e-4  # analyses are packed
    assert (values[:, None] >= values)[higher].all()
    assert np.ptp(values, axis=0).mean() > 0.5


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Forecasts of a start, and the analyses and past forecasts of 24 past starts, at two lead times."""
    folder, random = tmp_path_factory.mktemp("files"), np.random.default_rng(3)

    def members(starts):
        smooth = random.normal(size=(len(starts), 4, 2)).cumsum(2)
        return {
            ("2t", int(f"{start:%Y%m%d}"), lead, n): 280 + smooth[i, n - 1, k] + random.normal(size=FILE_GRID.shape)
            for i, start in enumerate(starts)
            for k, lead in enumerate((24, 48))
            for n in range(1, 5)
        }

    starts = [datetime(year, 1, day) for year in range(2007, 2019) for day in (1, 4)]
    write_members(folder / "input", members([datetime(2020, 1, 1)]))
    write_members(folder / "reforecasts", members(starts))
    analysis = Encoder(FILE_GRID, **KEYS, type="an", stream="oper")
    with (folder / "past").open("wb") as file:
        for start in starts:
            for lead in (24, 48):
                field, day = 280 + random.normal(size=FILE_GRID.shape), start + timedelta(hours=lead)
                file.write(analysis.encode(field, shortName="2t", dataDate=int(f"{day:%Y%m%d}"), endStep=0))
    corrector = random_corrector(Task("toy", ["2t"], ["2t"], (24, 48)), grid=FILE_GRID, size=1.0)
    errors = random.integers(-60, 60, (20, 2, *FILE_GRID.shape), np.int8)
    corrector.noise = Noise(errors, (("2t", 24), ("2t", 48)), tuple(range(20)), 0.5, 0.5)
    corrector.save(folder / "a.safetensors")
    export(folder / "a.safetensors", folder / "a.onnx")
    return folder, corrector


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.reads or method.fitted])
def test_files_datasets_and_exported_correctors_give_one_result(files, tmp_path, method):
    folder, corrector = files
    read = {option: (str(folder / {"history": "past"}.get(option, option)),) for option in METHODS[method].reads}
    options, found = CorrectionOptions(members=method, **read), []
    # An exported corrector has no noise.
    second = (
        TorchEngine(Corrector.load(folder / "a.safetensors"))
        if METHODS[method].fitted
        else OnnxEngine(folder / "a.onnx")
    )
    for engine in (TorchEngine(corrector), second):
        correct_files([engine], [folder / "input"], tmp_path / "out", SingleProcess(), options)
        found.append(read_values(tmp_path / "out").reshape(2, 4, *FILE_GRID.shape))
    np.testing.assert_allclose(found[0], found[1], atol=2e-3)
    lazy = open_ensemble(str(folder / "input"))
    corrected = corrector.correct(lazy, members=method, **read)
    assert corrected["2t"].chunks
    np.testing.assert_allclose(corrected["2t"].values[0], found[0], atol=2e-3)
    ecc_q = corrector.correct(lazy)["2t"].values[0]
    np.testing.assert_allclose(np.sort(ecc_q, 1), np.sort(found[0], 1), atol=2e-3)
    assert (ecc_q.argsort(1) != found[0].argsort(1)).mean() > 0.01


def test_a_lead_time_that_the_input_lacks_is_refused(files, tmp_path):
    folder, corrector = files
    short = open_ensemble(str(folder / "input"), lead_times=[24])
    read = {"history": str(folder / "past"), "reforecasts": str(folder / "reforecasts")}
    for method, way_out in (("decc", "choose members=ecc-q"), ("simschaake", "choose members=schaake")):
        with pytest.raises(InputError, match=rf"none at \+48 h; add .*{way_out}"):
            corrector.correct(short.load(), members=method, **read)
    with pytest.raises(InputError, match="members=gca needs past analyses; give their files with history=FILES"):
        corrector.correct(short, members="gca")
