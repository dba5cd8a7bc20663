"""Which forecasts are used, left out and counted: archives in every format with fields missing in known places."""

import json
from collections import Counter
from datetime import date, timedelta
from itertools import product

import netCDF4
import numpy as np
import pytest
import xarray as xr

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.formats.grib import Encoder
from data_pipeline.grid import Grid
from data_pipeline.inventory import task_report
from data_pipeline.statistics.training_forecasts import TrainingForecasts
from data_pipeline.store import Store, choose_source
from data_pipeline.store.manifest import Manifest
from data_pipeline.task import Task

GRID = Grid.regular(4, 6)
DAY = timedelta(days=1)
STARTS = [date(2018, 1, 1) + k * DAY for k in range(10)]
NAMES, LEADS, MEMBERS = ("2t", "msl"), (24, 48), (1, 2)
TASK = Task("toy", list(NAMES), list(NAMES), list(LEADS))
TRUTH = [STARTS[0] + k * DAY for k in range(1, 12)]
UNITS = {"2t": "K", "msl": "Pa"}
POLICIES = ("error", "mask", "drop")


def field(*place):
    return np.random.default_rng([*map(ord, repr(place))]).normal(280, 5, GRID.shape)


def write_grib(folder, ensemble, analysis):
    """Write one file for each start and for each day of truth."""
    encoder = Encoder(GRID, centre="ecmf", type="pf", stream="enfo", typeOfLevel="surface", setLocalDefinition=1)
    for name, start, lead, number in ensemble:
        keys = {"shortName": name, "dataDate": int(f"{start:%Y%m%d}"), "endStep": lead, "perturbationNumber": number}
        with (folder / f"ensemble.{start}").open("ab") as file:
            file.write(encoder.encode(field(name, start, lead, number), **keys))
    encoder = Encoder(GRID, centre="ecmf", type="an", stream="oper", typeOfLevel="surface")
    for name, day in analysis:
        with (folder / f"analysis.{day}").open("ab") as file:
            file.write(encoder.encode(field(name, day), shortName=name, dataDate=int(f"{day:%Y%m%d}")))


def write_netcdf(folder, ensemble, analysis):
    """Write one file for each field."""
    for name, start, lead, number in ensemble:
        place = {"forecast_reference_time": days(start), "forecast_period": lead / 24, "realization": number}
        write_field(folder / f"ensemble.{start}.{name}.{lead}.{number}", name, field(name, start, lead, number), place)
    for name, day in analysis:
        write_field(folder / f"analysis.{day}.{name}", name, field(name, day), {"time": days(day)})


def days(day):
    return (day - date(2000, 1, 1)).days + 0.5  # the encoder's fields are of 12 UTC


def write_field(path, name, values, place):
    with netCDF4.Dataset(path, "w") as file:
        for axis, degrees in (("latitude", GRID.latitudes), ("longitude", GRID.longitudes)):
            file.createDimension(axis, len(degrees))
            file.createVariable(axis, "f8", (axis,))[:] = degrees
            file[axis].units = f"degrees_{'north' if axis == 'latitude' else 'east'}"
        for key, number in place.items():
            file.createVariable(key, "f8")[...] = number
            file[key].standard_name = key
            if key != "realization":
                file[key].units = "days" if key == "forecast_period" else "days since 2000-01-01"
        variable = file.createVariable({"2t": "t2m"}.get(name, name), "f4", ("latitude", "longitude"))
        variable[...], variable.units = values, UNITS[name]


WRITERS = {"grib": write_grib, "netcdf": write_netcdf}


@pytest.fixture(params=WRITERS)
def write(request, tmp_path):
    """Return a function that writes an archive without some fields, and with an extra day of truth of one variable."""

    def write(without=(), unknown=(), extra=(), missing="error"):
        ensemble = [place for place in product(NAMES, STARTS, LEADS, MEMBERS) if place not in without]
        analysis = [place for place in product(NAMES, TRUTH) if place not in unknown]
        (folder := tmp_path / "archive").mkdir()
        WRITERS[request.param](folder, ensemble, [*analysis, *extra])
        return Archive([f"{folder}/ensemble*"], [f"{folder}/analysis*"], missing=missing)

    return write


def with_policy(archive, missing):
    return Archive(archive.ensemble, archive.analysis, missing=missing)


def forecasts(dataset):
    """Return the start and lead time of each sample."""
    starts, leads = dataset.times()
    when = [(date(1970, 1, 1) + timedelta(seconds=s)) for s in starts.tolist()]
    return list(zip(when, leads.tolist(), strict=True))


def everything(except_for=()):
    return [key for key in product(STARTS, LEADS) if key not in except_for]


def test_a_complete_archive_uses_all_forecasts(write):
    dataset = ForecastDataset(write(), TASK, [2018])
    assert forecasts(dataset) == everything()
    assert dataset.ledger.to_json() == {"forecasts": 20, "used": 20}
    assert dataset.ledger.lines("training") == ["training: 20 of 20 forecasts are used"]


@pytest.mark.parametrize("missing", POLICIES)
def test_forecasts_without_an_analysis_are_counted(write, missing):
    """5 of 10 starts have no analysis at 24 h, 6 have none at 48 h."""
    archive = write(unknown=set(product(NAMES, TRUTH[5:])), missing=missing)
    dataset = ForecastDataset(archive, TASK, [2018])
    there = [(start, lead) for start, lead in everything() if start + lead // 24 * DAY in TRUTH[:5]]
    assert forecasts(dataset) == there
    assert Counter(one.reason for one in dataset.ledger.omissions) == {"no_analysis": 20 - len(there)}
    assert (dataset.ledger.forecasts, dataset.ledger.used) == (20, len(there))
    assert dataset.ledger.lines("test")[1] == (
        "test: 11 left out with no analysis at their valid time, first 2018-01-05T12:00 + 48 h"
    )


def test_a_missing_member(write):
    """The last start is incomplete: its second member lacks pressure at 48 h."""
    archive = write(without={("msl", STARTS[-1], 48, 2)})
    with pytest.raises(
        InputError,
        match=r"ensemble\.2018-01-10\S* lacks msl of member 2 for the forecast of 2018-01-10T12:00:00 at 48 h, the "
        r"first of 1 forecasts that lack a field; complete the files, or set data\.archive\.missing to mask .* or to "
        r"drop \(leave them out\)",
    ):
        ForecastDataset(archive, TASK, [2018])
    dropped = ForecastDataset(with_policy(archive, "drop"), TASK, [2018])
    assert forecasts(dropped) == everything({(STARTS[-1], 48)})
    (line,) = dropped.ledger.lines("training")[1:]
    assert line.startswith(
        "training: 1 left out with a missing field, first 2018-01-10T12:00 + 48 h (msl; member 2, ens"
    )
    masked = ForecastDataset(with_policy(archive, "mask"), TASK, [2018])
    assert forecasts(masked) == everything()
    assert "1 used with a missing field, which models see as masked" in masked.ledger.lines("training")[1]
    assert masked[-1].mask.all((1, 2)).tolist() == [True, False]
    assert all(sample.mask.all() for sample in list(masked)[:-1])
    # Scores with fewer members are of the same forecasts.
    assert forecasts(ForecastDataset(with_policy(archive, "drop"), TASK, [2018], members=1)) == forecasts(dropped)
    assert ForecastDataset(with_policy(archive, "drop"), Task("t", ["2t"], ["2t"], [48]), [2018]).ledger.used == 10


def test_gaps_on_other_dates_do_not_matter(write):
    archive = write(without={("msl", STARTS[-1], 48, 2)})
    dates = Dates(((STARTS[0], STARTS[4]),))
    assert ForecastDataset(archive, TASK, dates).ledger.forecasts == 4 + 3


@pytest.mark.parametrize("missing", POLICIES)
def test_a_start_without_any_field_at_a_lead_time(write, missing):
    """The last start was not downloaded to its end: there is nothing to mask."""
    archive = write(without=set(product(NAMES, STARTS[-1:], [48], MEMBERS)), missing=missing)
    if missing == "error":
        with pytest.raises(InputError, match="lacks all fields for the forecast of 2018-01-10T12:00:00 at 48 h"):
            ForecastDataset(archive, TASK, [2018])
        return
    dataset = ForecastDataset(archive, TASK, [2018])
    assert forecasts(dataset) == everything({(STARTS[-1], 48)})
    assert set(dataset.ledger.by_reason) == {"missing_field"}


@pytest.mark.parametrize("missing", POLICIES)
def test_an_extra_day_of_one_target_changes_nothing(write, missing):
    """One more day of truth, of 2 m temperature only: no forecast is valid then."""
    archive = write(extra=[("2t", TRUTH[-1] + DAY)], missing=missing)
    dataset = ForecastDataset(archive, TASK, [2018])
    assert forecasts(dataset) == everything()
    assert not dataset.ledger.omissions
    assert archive.analyses(TASK.targets).sizes["time"] == 12


def test_a_target_without_truth_on_some_days(write):
    """The truth of pressure is missing on 4 of 11 days, for which 8 forecasts are valid."""
    gaps = set(TRUTH[2:6])
    archive = write(unknown={("msl", day) for day in gaps})
    hit = {(start, lead) for start, lead in everything() if start + lead // 24 * DAY in gaps}
    assert len(hit) == 8
    with pytest.raises(
        InputError, match=r"analysis\S* lacks msl truth for the forecast of .*, the first of 8 forecasts"
    ):
        ForecastDataset(archive, TASK, [2018])
    dropped = ForecastDataset(with_policy(archive, "drop"), TASK, [2018])
    assert forecasts(dropped) == everything(hit)
    masked = ForecastDataset(with_policy(archive, "mask"), TASK, [2018])
    assert forecasts(masked) == everything()
    for key, sample in zip(forecasts(masked), masked, strict=True):
        assert sample.target.isnan().all((1, 2)).tolist() == [False, key in hit]
        assert sample.mask.all()
    assert masked.ledger.to_json()["masked"]["count"] == 8
    assert dropped.ledger.to_json()["missing_field"]["first"].startswith(
        "2018-01-02T12:00 + 48 h (msl truth; analysis."
    )


def test_truth_of_one_target_may_have_many_more_times(write):
    """Nine tenths of the combinations of time and variable are missing, as with hourly and daily analyses."""
    unknown = {("msl", day) for day in TRUTH[1:]}
    dataset = ForecastDataset(write(unknown=unknown, missing="drop"), TASK, [2018])
    assert forecasts(dataset) == [(STARTS[0], 24)]


def test_no_usable_forecast_is_an_error(write):
    archive = write(unknown=set(product(["msl"], TRUTH)) - {("msl", TRUTH[-1])}, missing="drop")
    with pytest.raises(
        InputError, match=r"valid in 2018-01-01 to 2018-01-05 can be used: .*; 7 left out with a missing"
    ):
        ForecastDataset(archive, TASK, Dates(((STARTS[0], STARTS[4]),)))


@pytest.mark.parametrize("missing", ["mask", "drop"])
def test_a_store_and_statistics_have_the_ledger_of_the_archive(write, missing, tmp_path):
    archive = write(
        without={("msl", STARTS[-1], 48, 2), ("2t", STARTS[3], 24, 1)}, unknown={("msl", TRUTH[5]), ("2t", TRUTH[8]),
        ("msl", TRUTH[8])}, missing=missing,
    )  # fmt: skip
    store = Store.write(archive, TASK, tmp_path / "store")
    found = Manifest.read(tmp_path / "store").plan
    assert found == store.contents
    assert found.ledger == ForecastDataset(archive, TASK, [2018]).ledger
    for dates in ([2018], Dates(((STARTS[0], STARTS[6]),)), Dates(((STARTS[2], TRUTH[-1]),))):
        ours, theirs = (ForecastDataset(source, TASK, dates) for source in (store, archive))
        assert ours.ledger == theirs.ledger
        assert forecasts(ours) == forecasts(theirs)
        assert ours.fingerprint == theirs.fingerprint
    training = TrainingForecasts(archive, TASK, Dates.of_years([2018]))
    assert training.ledger == found.ledger
    assert len(training.keys) == found.ledger.used
    # A forecast that another task could use is not in a store that dropped it.
    narrow = Task("t", ["2t"], ["2t"], list(LEADS))
    if missing == "drop":
        with pytest.raises(InputError, match="was made without 3 forecasts that lack a field and could be used"):
            ForecastDataset(store, narrow, [2018])
    else:
        assert ForecastDataset(store, narrow, [2018]).ledger == ForecastDataset(archive, narrow, [2018]).ledger
    other = with_policy(archive, "drop" if missing == "mask" else "mask")
    with pytest.raises(
        InputError, match=f"was made with data.archive.missing={missing}, and some of its forecasts lack"
    ):
        choose_source(other, tmp_path / "store", Dates.of_years([2018]))


def test_a_ledger_is_plain_json(write):
    archive = write(without={("msl", STARTS[-1], 48, 2)}, missing="drop")
    values = ForecastDataset(archive, TASK, [2018]).ledger.to_json()
    assert json.loads(json.dumps(values)) == values
    assert values["forecasts"] == values["used"] + values["missing_field"]["count"]


def test_prepare_reports_gaps_of_ensemble_and_analysis(write):
    """5 of 10 starts have an analysis; the truth of pressure is missing on one more day."""
    archive = write(unknown={*product(NAMES, TRUTH[5:]), ("msl", TRUTH[0])})
    lines = list(task_report(archive, TASK, {}))
    assert lines[0] == "task toy: 8 of 20 forecasts are used"
    assert lines[1].startswith(
        "task toy: 11 left out with no analysis at their valid time, first 2018-01-05T12:00 + 48 h"
    )
    assert lines[2].startswith(
        "task toy: 1 left out with a missing field, first 2018-01-01T12:00 + 24 h (msl truth; ana"
    )
    assert "train and evaluate stop at a missing field, because data.archive.missing=error" in lines[3]
    assert len(list(task_report(with_policy(archive, "drop"), TASK, {}))) == 3


def test_missing_fields_of_zarr_stores(tmp_path):
    """One store for each field, of which one is missing; the rules are those of the other formats."""
    (files := tmp_path / "netcdf").mkdir()
    ensemble = [place for place in product(NAMES, STARTS[:2], LEADS, MEMBERS) if place != ("msl", STARTS[1], 48, 2)]
    write_netcdf(files, ensemble, list(product(NAMES, TRUTH[:3])))
    for path in files.iterdir():
        with xr.open_dataset(path, decode_cf=False) as field:
            field.load().to_zarr(tmp_path / f"{path.name}.zarr", zarr_format=2)
    archive = Archive([f"{tmp_path}/ensemble*.zarr"], [f"{tmp_path}/analysis*.zarr"])
    with pytest.raises(InputError, match="lacks msl of member 2 for the forecast of 2018-01-02T12:00:00 at 48 h"):
        ForecastDataset(archive, TASK, [2018])
    dropped = ForecastDataset(with_policy(archive, "drop"), TASK, [2018])
    assert forecasts(dropped) == [(STARTS[0], 24), (STARTS[0], 48), (STARTS[1], 24)]
    masked = ForecastDataset(with_policy(archive, "mask"), TASK, [2018])
    assert [sample.mask.all((1, 2)).tolist() for sample in masked] == [[True, True]] * 3 + [[True, False]]
    assert masked.ledger.to_json()["masked"]["count"] == 1
