"""Planted errors of the truth are found, named and masked, as if they had been removed from the files by hand."""

import csv
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from weather_files import weather, write

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.sources.array_source import ArraySource
from data_pipeline.sources.plausibility import data_warnings
from data_pipeline.store import Store, choose_source
from data_pipeline.task import Task
from data_pipeline.truth_checks import TRUTH_TABLE, examine, write_table
from data_pipeline.variables.variable import Variable

GRID, DAYS = Grid.regular(5, 8), 64
STARTS = np.datetime64("2020-01-01", "ns") + np.arange(DAYS) * np.timedelta64(24, "h")
TASK = Task("two", ["2t", "t@850"], ["2t", "t@850"], [24])
CLEAN = weather(starts=STARTS, grid=GRID)
PLANTED = {"2t": {(10, 1, 2): 9999.0, (40, 3, 7): 200.0}, "t": {(7, 0, 0): 30.0}}
"""Wrong values by variable: day, row and column."""
STUCK = slice(20, 36), 2, 5
"""Days and cell of a stuck sensor in 2t."""


def changed(remove):
    """Return the analyses with wrong values, or with these values removed by hand."""
    analysis = CLEAN["analysis"].copy(deep=True)
    for name, places in PLANTED.items():
        values = analysis[name].values
        for (day, *cell), wrong in places.items():
            values[(day, *[0] * (values.ndim - 3), *cell)] = np.nan if remove else wrong
    analysis["2t"].values[STUCK] = np.nan if remove else analysis["2t"].values[20, 2, 5]
    return analysis


def of_policy(source, policy, folder):
    """Return a source with a policy of truth checks."""
    if isinstance(source, Store):
        archive = Archive(*([str(folder / part)] for part in CLEAN), truth_checks=policy)
        return Store.write(archive, TASK, folder / f"store of {policy}")
    if isinstance(source, ArraySource):
        parts = [xr.open_dataset(folder / part, engine="netcdf4").load() for part in CLEAN]
        return ArraySource(*parts, truth_checks=policy)
    return replace(source, truth_checks=policy)


def samples(source, **options):
    return list(ForecastDataset(source, TASK, Dates.all(), **options))


def equal(one, other):
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a.nan_to_num(-1), b.nan_to_num(-1)) for pair in pairs for a, b in zip(*pair, strict=True))


@pytest.fixture(scope="module", params=["grib", "netcdf 4", "arrays", "store"])
def sources(request, tmp_path_factory):
    """The same weather in each format, with wrong values and without these values, and the folders."""
    folders = [tmp_path_factory.mktemp(name) for name in ("wrong", "removed")]
    made = []
    for folder, remove in zip(folders, (False, True), strict=True):
        if request.param == "store":
            write("netcdf 4", folder, **CLEAN | {"analysis": changed(remove)})
            made.append(Store.write(Archive(*([str(folder / part)] for part in CLEAN)), TASK, folder / "store"))
        else:
            made.append(write(request.param, folder, **CLEAN | {"analysis": changed(remove)}))
    return request.param, made, folders


def test_masking_is_removing_by_hand(sources):
    """GRIB packs a field with 9999 K coarsely, and packs equal values of two fields differently."""
    name, (wrong, removed), (folder, _) = sources
    masked = of_policy(wrong, "mask", folder)
    assert masked.fingerprint != wrong.fingerprint
    if name.startswith("grib"):
        gone = [one.target.isnan().sum((1, 2)).tolist() for one in samples(masked)]
        assert [sum(one) for one in zip(*gone, strict=True)] == [2, 1]
        return
    expected = samples(removed)
    assert equal(samples(masked), expected)
    tile = {"rows": slice(1, 4), "columns": slice(2, 8)}
    assert equal(samples(masked, **tile), samples(removed, **tile))
    sent = pickle.loads(pickle.dumps(ForecastDataset(masked, TASK, Dates.all())))
    assert equal([sent[day] for day in range(6, 12)], expected[6:12])
    assert not equal(samples(wrong), expected)


def test_each_error_is_named_with_cell_and_date(sources, tmp_path):
    name, (wrong, removed), (folder, _) = sources
    found = data_warnings(wrong, TASK, Dates.all(), table=tmp_path / "run" / TRUTH_TABLE)
    lossless = not name.startswith("grib")
    rows, columns = np.array(GRID.latitudes), np.array(GRID.longitudes)
    assert len(found) == 3 + lossless
    of_truth = "of 2,560 values of the truth are"
    assert found[0].startswith(f"2t: 1 {of_truth} outside the plausible range from 180 to 335 K (9999")
    assert f"latitude {rows[1]:g}, longitude {columns[2]:g}, 2020-01-12T" in found[0]
    if lossless:
        assert found[1].startswith(f"2t: 16 {of_truth} in 1 constant stretch, as of a stuck sensor")
        assert f"latitude {rows[2]:g}, longitude {columns[5]:g}, 16 times from 2020-01-22T" in found[1]
    assert f" K at latitude {rows[3]:g}, longitude {columns[7]:g}, 2020-02-11T" in found[-2]
    assert "between values of 2" in found[-2]
    assert found[-1].startswith(f"t@850: 1 {of_truth} outside the plausible range from 120 to 340 K")
    with (tmp_path / "run" / TRUTH_TABLE).open() as file:
        kinds = [row["error"] for row in csv.DictReader(file)]
    assert [kinds.count(kind) for kind in ("range", "stretch", "outlier")] == [2, 16 * lossless, 1]
    if name != "store":
        with pytest.raises(InputError, match=r"2t: 1 of .*mask leaves them out, and truth_checks=report"):
            samples(of_policy(wrong, "error", folder))
        told = data_warnings(of_policy(wrong, "mask", folder), TASK, Dates.all())
        assert [one.replace("; they are masked", "") for one in told] == [one.rpartition("; ")[0] for one in found]
    early = Dates.of_times(STARTS[:9])
    assert [one.partition(":")[0] for one in data_warnings(wrong, TASK, early)] == ["t@850"]
    missing = data_warnings(removed, TASK, Dates.all())
    assert missing[0].startswith(f"2t: {2 + 16} of 2,560 values of the truth are missing (0.7%)")
    assert len(missing) == 2


def test_a_store_without_the_same_checks_is_refused(tmp_path):
    """Also where the files no longer exist; with `error`, a store of any files is checked when it is read."""
    write("netcdf 4", tmp_path, **CLEAN | {"analysis": changed(False)})
    for policy, other in (("report", "mask"), ("mask", "report")):
        archive = Archive(*([str(tmp_path / part)] for part in CLEAN), truth_checks=policy)
        Store.write(archive, TASK, folder := tmp_path / policy)
        assert isinstance(choose_source(archive, folder, Dates.all()), Store)
        for paths in (archive.ensemble, ["nothing"]):
            with pytest.raises(InputError, match=rf"{policy} was made with(out)? data.archive.truth_checks=mask; set"):
                choose_source(replace(archive, ensemble=paths, truth_checks=other), folder, Dates.all())
    strict = choose_source(replace(archive, truth_checks="error"), tmp_path / "report", Dates.all())
    with pytest.raises(InputError, match="2t: 1 of 2,560 values of the truth are outside"):
        samples(strict)


def test_dask_arrays_and_a_single_station(tmp_path):
    """Where all stations lose their value, the time has no analysis, as after removing it by hand."""
    cell = {"latitude": [2], "longitude": [5]}
    parts = [CLEAN["ensemble"].isel(cell), changed(False).isel(cell), changed(True).isel(cell)]
    ensemble, wrong, removed = (
        one.stack(point=("latitude", "longitude")).reset_index("point").drop_vars("level").squeeze("level")
        for one in parts
    )
    task = Task("one", ["2t"], ["2t"], [24])
    read = [
        ForecastDataset(ArraySource(*pair, truth_checks=policy), task, Dates.all())
        for pair, policy in (
            ((ensemble, wrong), "mask"), ((ensemble.chunk(), wrong.chunk(time=9)), "mask"),
            ((ensemble, removed), "error"),
        )
    ]  # fmt: skip
    for one in read[:2]:
        assert one.ledger == read[2].ledger
        assert equal(list(one), list(read[2]))
    assert read[0].ledger.left_out == 16


def test_right_data_have_no_implausible_value():
    """Neither rain, nor calm, nor clouds, nor ice, nor whole degrees, nor a real front that the forecast knows."""
    random = np.random.default_rng(0)
    days, H, W = 400, 6, 8
    base = 280 + 8 * random.standard_normal((days, H, W))
    calm = 280 + (base - 280) / 2
    front = calm - 70 * (np.arange(days) == 100)[:, None, None]
    dry = np.where(random.random((days, H, W)) < 0.9, 0, random.gamma(0.3, 0.05, (days, H, W)))
    cases = {
        "2t": base.round(), "tp:24h": dry, "tcc": (base > 280).astype(float), "10si": np.maximum(base - 284, 0),
        "sst": np.maximum(base, 280), "msl": 1e5 + 100 * (base - 280), "skt": front,
        "visibility": np.minimum(base, 281), "t": np.repeat(base[::7], 7, 0)[:days],
    }  # fmt: skip
    for name, values in cases.items():
        found = find(name, values, values + random.normal(0, 1, values.shape))
        assert list(found.sentences("report")) == [], name
    one = (slice(None), slice(1), slice(1))
    assert find("skt", front[one], calm[one]).suspects["time"].tolist() == [86400 * 100]
    assert len(find("skt", front[one], front[one]).suspects) == 0, "a forecast confirms the front"
    assert len(find("skt", front, calm).suspects) == 0, "cells beside confirm it"


def find(name, values, forecast, **options):
    """Return the findings for daily values (n, H, W) of a variable."""
    variable, one_cell = Variable.parse(name), values.shape[2] == 1
    grid = Grid((45.0,), (0.0,)) if one_cell else Grid.regular(*values.shape[1:])
    times = np.arange(len(values)) * np.timedelta64(86400, "s") + np.datetime64(0, "s")
    axes = {"time": times, "latitude": list(grid.latitudes), "longitude": list(grid.longitudes)}
    truth, forecasts = (
        xr.DataArray(one.astype("f4"), axes, [*axes], variable.name).to_dataset() for one in (values, forecast)
    )
    forecasts = forecasts.rename(time="init_time").expand_dims({"lead_time": [0], "number": [0]}, (1, 2))
    source = ArraySource(forecasts, truth, names={variable.name: name})
    return examine(source.analysis_fields([variable]), variable, source.ensemble_fields([variable], [0]), **options)


def test_a_report_examines_blocks_of_much_truth_and_mostly_wrong_values_have_wrong_units(monkeypatch):
    values = np.random.default_rng(0).normal(280, 5, (640, 3, 4))
    values[[3, 300, 639], 1, 1] = 9999
    for name, number in {"BLOCK_VALUES": 768, "REPORT_VALUES": 1600}.items():
        monkeypatch.setattr(f"data_pipeline.truth_checks.{name}", number)
    whole, part = (find("2t", values, values, whole=flag) for flag in (True, False))
    assert (len(whole.suspects), len(part.suspects)) == (3, 2)
    assert part.times.tolist() == [86400 * day for day in (*range(64), *range(576, 640))]
    sentence = next(part.sentences("report"))
    assert sentence.startswith("2t: 2 of 1,536 values of the truth at 128 of 640 times are outside")
    values = np.random.default_rng(0).normal(10, 5, (30, 3, 4))
    with pytest.raises(InputError, match=r"360 of 360 values .* the units seem to be wrong; state"):
        find("2t", values, values).refuse()


def test_a_table_has_one_row_for_a_field_of_wrong_values(tmp_path):
    """Ten fields of 180 cells in °C, one wrong value and two stuck cells have 10 + 1 + 9 + 12 rows."""
    values = np.random.default_rng(0).normal(280, 5, (64, 12, 15))
    values[3:13] -= 273.15
    values[20, 1, 1] = 9999
    values[30:39, 2, 5] = values[50:62, 2, 6] = 281.5
    found = find("2t", values, values)
    write_table([found], tmp_path / TRUTH_TABLE)
    with (tmp_path / TRUTH_TABLE).open() as file:
        rows = [(np.datetime64(row["valid_time"]).astype(int) // 86400, *row.values()) for row in csv.DictReader(file)]
    assert [day for day, *_ in rows] == [*range(3, 13), 20, *range(30, 39), *range(50, 62)]
    assert [row[3] for row in rows] == ["180 places"] * 10 + [found.place(1, 1)] + [found.place(2, 5)] * 9 + [
        found.place(2, 6)
    ] * 12
    low, high = values[3].astype("f4").min(), values[3].astype("f4").max()
    assert (rows[0][4], rows[10][4], rows[11][4]) == (f"{low:g} to {high:g}", "9999", "281.5")
