"""The files: keys and coordinates of the real archives, and physically consistent fields."""

from datetime import datetime, timedelta
from pathlib import Path

import cfgrib
import eccodes
import numpy as np
import pytest
from twin_project import messages

from data_pipeline.grid import Grid

ALOFT = ["z", "t", "u", "v", "w", "q", "d"]
SURFACE = ["sst", "tcw", "tcwv", "cp", "msl", "tcc", "10u", "10v", "2t", "tp", "skt"]
"""As in ENS-10 files."""

PLAUSIBLE = {
    "z": (6e3, 6.2e4), "t": (210, 320), "u": (-90, 90), "v": (-90, 90), "q": (0, 0.06), "w": (-4, 4),
    "d": (-1e-4, 1e-4), "sst": (271, 308), "tcw": (0, 130), "tcwv": (0, 130), "cp": (0, 0.1), "tp": (0, 0.3),
    "msl": (9.4e4, 1.09e5), "tcc": (0, 1), "10u": (-40, 40), "10v": (-40, 40), "2t": (215, 330),
    "skt": (210, 335),
}  # fmt: skip
VECTORS = {"u", "v", "10u", "10v"}
MEMBERS = range(1, 6)

KEYS = (
    "edition", "centre", "class", "type", "stream", "expver", "localDefinitionNumber", "mars.param",
    "levtype", "level", "dataDate", "dataTime", "referenceDate", "hdate", "mars.date", "P1", "step",
    "stepType", "number", "totalNumber", "bitsPerValue", "bitmapPresent", "numberOfMissing", "gridType",
    "units", "iScansNegatively", "jScansPositively", "jPointsAreConsecutive",
)  # fmt: skip


def keys_of(file, **wanted):
    """Return the defined `KEYS` of the first message of a file with the wanted values."""
    for message in messages(file):
        if all(eccodes.codes_get(message, key) == value for key, value in wanted.items()):
            found = [name for name in KEYS if eccodes.codes_is_defined(message, name)]
            return {name: eccodes.codes_get(message, name) for name in found}
    raise AssertionError(f"no message with {wanted} in {file}")


@pytest.fixture(scope="module")
def folder(tiny):
    return Path(tiny.path)


@pytest.fixture(scope="module")
def surface(folder, read_grib):
    return read_grib(folder / "output.sfc.20180712")


@pytest.fixture(scope="module")
def aloft(folder, read_grib):
    return read_grib(folder / "output.pl.20180712")


def test_a_forecast_message_has_the_keys_of_a_reforecast(folder):
    wanted = {"dataDate": 20160111, "shortName": "t", "level": 850, "step": 48, "number": 3}
    assert keys_of(folder / "output.pl.20180111", **wanted) == {
        "edition": 1, "centre": "ecmf", "class": "od", "type": "pf", "stream": "enfh", "expver": "0001",
        "localDefinitionNumber": 26, "mars.param": "130.128", "levtype": "pl", "level": 850,
        "dataDate": 20160111, "dataTime": 0, "referenceDate": 20180111, "hdate": 20160111,
        "mars.date": 20180111, "P1": 48, "step": 48, "stepType": "instant", "number": 3, "totalNumber": 6,
        "bitsPerValue": 16, "bitmapPresent": 0, "numberOfMissing": 0, "gridType": "regular_ll", "units": "K",
        "iScansNegatively": 0, "jScansPositively": 0, "jPointsAreConsecutive": 0,
    }  # fmt: skip


def test_an_analysis_message_has_the_keys_of_era5(folder):
    keys = keys_of(folder / "analysis.sfc.20180111", dataDate=20160113, shortName="2t")
    expected = {
        "class": "ea", "type": "an", "stream": "oper", "expver": "0001", "mars.param": "167.128",
        "levtype": "sfc", "dataDate": 20160113, "dataTime": 0, "mars.date": 20160113, "step": 0,
    }  # fmt: skip
    assert {name: keys[name] for name in expected} == expected
    assert "hdate" not in keys


CFGRIB_NAMES = {"10u": "u10", "10v": "v10", "2t": "t2m"}


@pytest.mark.parametrize(
    ("file", "names"),
    [("output.pl.20180108", ALOFT), ("oracle.sfc.20180108", ["2t", "tp"]), ("analysis.pl.20180712", ALOFT)],
)
def test_cfgrib_opens_a_file_with_the_dimensions_of_ens10_and_the_truth_at_its_valid_times(tiny, folder, file, names):
    data = cfgrib.open_dataset(folder / file, indexpath="")
    assert set(data.data_vars) == {CFGRIB_NAMES.get(name, name) for name in names}
    if "analysis" in file:
        days = [f"{year}-07-{day}" for year in tiny.years for day in (12, 13, 14)]
        assert data.z.dims == ("time", "isobaricInhPa", "latitude", "longitude")
    else:
        days = [f"{year}-01-08" for year in (tiny.oracle_years if "oracle" in file else tiny.years)]
        assert data.number.values.tolist() == [*MEMBERS]
        assert (data.step.values / np.timedelta64(1, "h")).tolist() == [0, 24, 48]
    assert [str(time)[:10] for time in data.time.values] == days
    if ".pl." in file:
        assert data.isobaricInhPa.values.tolist() == [850, 500]
    assert Grid(tuple(data.latitude.values), tuple(data.longitude.values)).matches(Grid.regular(33, 64))


def test_values_are_plausible_and_only_the_sea_temperature_is_missing_on_land(surface, aloft, folder, read_grib):
    static = read_grib(folder / "static")
    land, height = (static[name, 0, 20180101, 0, 0] for name in ("lsm", "z"))
    assert 0.2 < np.average(land.mean(1), weights=Grid.regular(33, 64).weights) < 0.4
    assert (land.min(), land.max()) == (0, 1)
    assert 3000 < height.max() / 9.80665 < 6000
    for fields in (surface, aloft):
        for (name, *_), values in fields.items():
            lowest, highest = PLAUSIBLE[name]
            assert lowest <= np.nanmin(values), name
            assert np.nanmax(values) <= highest * (1 + 1e-4), name
            missing = land > 0.5 if name == "sst" else np.zeros_like(land, bool)
            assert np.array_equal(np.isnan(values), missing), name


def test_rain_accumulates_from_zero_and_includes_convective_rain(surface):
    for (name, level, day, step, member), total in surface.items():
        if name != "tp":
            continue
        packing = 4e-5 * total.max()
        assert (surface["cp", level, day, step, member] <= total + packing).all()
        if step == 0:
            assert total.max() == 0
        else:
            assert (total >= surface["tp", level, day, step - 24, member] - packing).all()
            assert total.max() > 1e-3


def test_a_pole_has_one_value(surface, aloft):
    for (name, *_), values in (surface | aloft).items():
        if name not in VECTORS | {"sst"}:
            assert np.ptp(values[[0, -1]], axis=1).max() <= 1e-4 * np.ptp(values), name
    for name in ("u", "v"):
        wind = aloft[name, 500, 20170712, 0, 1][0]
        # Across the pole, 180 degrees of longitude away, both components change sign.
        assert np.abs(wind + np.roll(wind, 32)).max() < 1e-2


def test_members_are_the_oracle_members_contracted_towards_their_mean(aloft, folder, read_grib):
    """The geopotential is linear in the state, so it shows the contraction at the start exactly."""
    name, level = "z", 500
    oracle = read_grib(folder / "oracle.pl.20180712", name, 0)
    start = np.stack([oracle[name, level, 20160712, 0, member] for member in MEMBERS])
    members = np.stack([aloft[name, level, 20160712, 0, member] for member in MEMBERS])
    expected = start.mean(0) + 0.85 * (start - start.mean(0))
    np.testing.assert_allclose(members, expected, rtol=0, atol=6e-5 * np.ptp(start))


def test_the_truth_is_one_more_member_of_the_oracle(tiny, folder, read_grib):
    """Exchangeability: a flat rank histogram and a spread equal to the error. Forecasts have less spread."""
    area, name, level = Grid.regular(33, 64).weights[:, None] * np.ones(64), "2t", 0
    errors = {"oracle": [], "output": []}
    spreads = {"oracle": [], "output": []}
    ranks = []
    for start in ("0108", "0111", "0709", "0712"):
        truths = read_grib(folder / f"analysis.sfc.2018{start}", name, 0)
        for kind in ("oracle", "output"):
            fields = read_grib(folder / f"{kind}.sfc.2018{start}", name, 48)
            for year in tiny.oracle_years:
                day = f"{year}{start}"
                valid = datetime.strptime(day, "%Y%m%d") + timedelta(hours=48)
                truth = truths[name, level, int(valid.strftime("%Y%m%d")), 0, 0]
                members = np.stack([fields[name, level, int(day), 48, number] for number in MEMBERS])
                errors[kind].append(np.average((members.mean(0) - truth) ** 2, weights=area))
                spreads[kind].append(np.average(members.var(0, ddof=1), weights=area))
                if kind == "oracle":
                    rank = (members < truth).sum(0)
                    ranks.append([np.average(rank == place, weights=area) for place in range(6)])
    np.testing.assert_allclose(np.mean(ranks, 0), 1 / 6, atol=0.035)
    ratio = {kind: np.sqrt(1.2 * np.mean(spreads[kind]) / np.mean(errors[kind])) for kind in errors}
    assert 0.9 < ratio["oracle"] < 1.1
    assert ratio["output"] < 0.8
