"""Which forecasts are used, left out and counted: GRIB files with fields missing in known places.

The law of the ledger (`tests/end_to_end/test_ledger_law.py`) and that of substitution compare with other formats.
"""

from datetime import date, timedelta
from itertools import product

import numpy as np
import pytest
from weather_files import forecasts_of, weather, write_grib

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.sources.inventory import task_report
from data_pipeline.store import Store, choose_source
from data_pipeline.task import Task

DAY = timedelta(days=1)
STARTS = [date(2018, 1, 1) + k * DAY for k in range(10)]
NAMES, LEADS, MEMBERS = ("2t", "msl"), (24, 48), (1, 2)
TASK = Task("toy", list(NAMES), list(NAMES), list(LEADS))
TRUTH = [STARTS[0] + k * DAY for k in range(1, 12)]


@pytest.fixture
def write(tmp_path):
    """Return a function that writes an archive without some fields."""

    def write(without=(), unknown=(), missing="error"):
        parts = weather(LEADS, MEMBERS, (), np.array(STARTS, "M8[ns]"), NAMES, Grid.regular(4, 6))
        ensemble, analysis = parts["ensemble"], parts["analysis"]
        for name, start, lead, number in without:
            ensemble[name].loc[np.datetime64(start), lead, number] = np.nan
        analysis = analysis.reindex(time=np.array(TRUTH, "M8[ns]"))
        for name, day in unknown:
            analysis[name].loc[np.datetime64(day)] = np.nan
        (folder := tmp_path / "archive").mkdir()
        for k, start in enumerate(STARTS):
            write_grib(folder / f"ensemble.{start}", "ensemble", ensemble.isel(init_time=[k]))
        write_grib(folder / "analysis", "analysis", analysis)
        return Archive([f"{folder}/ensemble*"], [f"{folder}/analysis"], missing=missing)

    return write


def with_policy(archive, missing):
    return Archive(archive.ensemble, archive.analysis, missing=missing)


def everything(except_for=()):
    return [(str(start), lead) for start, lead in product(STARTS, LEADS) if (start, lead) not in except_for]


def test_a_missing_member(write):
    """The last start is incomplete: its second member lacks pressure at 48 h."""
    archive = write(without={("msl", STARTS[-1], 48, 2)})
    sentence = r"ensemble\.2018-01-10\S* lacks msl of member 2 for the forecast of 2018-01-10T12:00:00 at 48 h, "
    with pytest.raises(InputError, match=sentence + r".*of 1 forecasts .* data.archive.missing to mask .* or to drop"):
        ForecastDataset(archive, TASK, [2018])
    dropped = ForecastDataset(with_policy(archive, "drop"), TASK, [2018])
    assert forecasts_of(dropped) == everything({(STARTS[-1], 48)})
    (line,) = dropped.ledger.lines("training")[1:]
    assert "1 left out with a missing field, first 2018-01-10T12:00 + 48 h (msl; member 2, ensemble" in line
    masked = ForecastDataset(with_policy(archive, "mask"), TASK, [2018])
    assert forecasts_of(masked) == everything()
    assert "1 used with a missing field, which models see as masked" in masked.ledger.lines("training")[1]
    assert masked[-1].mask.all((1, 2)).tolist() == [True, False]
    assert all(sample.mask.all() for sample in list(masked)[:-1])
    # Scores with fewer members are of the same forecasts.
    assert forecasts_of(ForecastDataset(with_policy(archive, "drop"), TASK, [2018], members=1)) == forecasts_of(dropped)
    assert ForecastDataset(with_policy(archive, "drop"), Task("t", ["2t"], ["2t"], [48]), [2018]).ledger.used == 10


def test_a_start_without_any_field_at_a_lead_time(write):
    """The last start was not downloaded to its end: there is nothing to mask."""
    archive = write(without=set(product(NAMES, STARTS[-1:], [48], MEMBERS)))
    with pytest.raises(InputError, match="lacks all fields for the forecast of 2018-01-10T12:00:00 at 48 h"):
        ForecastDataset(archive, TASK, [2018])
    for missing in ("mask", "drop"):
        dataset = ForecastDataset(with_policy(archive, missing), TASK, [2018])
        assert forecasts_of(dataset) == everything({(STARTS[-1], 48)})
        assert set(dataset.ledger.by_reason) == {"missing_field"}


def test_a_target_without_truth_on_some_days(write):
    """The truth of pressure is missing on 4 of 11 days, for which 8 forecasts are valid."""
    gaps = set(TRUTH[2:6])
    archive = write(unknown={("msl", day) for day in gaps})
    hit = {(start, lead) for start, lead in product(STARTS, LEADS) if start + lead // 24 * DAY in gaps}
    assert len(hit) == 8
    with pytest.raises(InputError, match=r"analysis\S* lacks msl truth for the forecast of .*, the first of 8 "):
        ForecastDataset(archive, TASK, [2018])
    dropped = ForecastDataset(with_policy(archive, "drop"), TASK, [2018])
    assert forecasts_of(dropped) == everything(hit)
    masked = ForecastDataset(with_policy(archive, "mask"), TASK, [2018])
    assert forecasts_of(masked) == everything()
    for key, sample in zip(product(STARTS, LEADS), masked, strict=True):
        assert sample.target.isnan().all((1, 2)).tolist() == [False, key in hit]
        assert sample.mask.all()
    assert masked.ledger.to_json()["masked"]["count"] == 8
    assert "2018-01-02T12:00 + 48 h (msl truth; analysis" in dropped.ledger.to_json()["missing_field"]["first"]
    days = Dates(((TRUTH[2], TRUTH[4]),))  # of the starts of these days and the day before, all are valid in the gap
    with pytest.raises(InputError, match=r"in 2018-01-04 to 2018-01-06 can be used: .*; 6 left out with a missing"):
        ForecastDataset(with_policy(archive, "drop"), TASK, days)


def test_a_store_made_with_another_policy_is_refused(write, tmp_path):
    archive = write(without={("msl", STARTS[-1], 48, 2)})
    for missing, other in (("mask", "drop"), ("drop", "mask")):
        Store.write(with_policy(archive, missing), TASK, tmp_path / missing)
        with pytest.raises(InputError, match=f"made with data.archive.missing={missing}, and some of its forecasts"):
            choose_source(with_policy(archive, other), tmp_path / missing, Dates.of_years([2018]))


def test_prepare_reports_gaps_of_ensemble_and_analysis(write):
    """5 of 10 starts have an analysis; the truth of pressure is missing on one more day."""
    archive = write(unknown={*product(NAMES, TRUTH[5:]), ("msl", TRUTH[0])})
    lines = list(task_report(archive, TASK, {}))
    assert lines[0] == "task toy: 8 of 20 forecasts are used"
    assert "11 left out with no analysis at their valid time, first 2018-01-05T12:00 + 48 h" in lines[1]
    assert "1 left out with a missing field, first 2018-01-01T12:00 + 24 h (msl truth; analysis" in lines[2]
    assert "train and evaluate stop at a missing field, because data.archive.missing=error" in lines[3]
    *ledger, units = task_report(with_policy(archive, "drop"), TASK, {})
    assert len(ledger) == 3
    assert units.startswith("warning: msl: ")
    assert "the units seem to be wrong" in units
