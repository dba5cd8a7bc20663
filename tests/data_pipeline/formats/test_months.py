"""Lead times in calendar months: the valid times are those of the calendar, not of months of 30 days."""

from calendar import monthrange

import eccodes
import numpy as np
import pytest
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.table import Table
from data_pipeline.formats.open import open_ensemble


def hours(year, month, count):
    """The hours of `count` calendar months from the start of a month on."""
    months = [(year + (month + k - 1) // 12, (month + k - 1) % 12 + 1) for k in range(count)]
    return 24 * sum(monthrange(*one)[1] for one in months)


def message(date, first, length, unit, edition=2):
    handle = eccodes.codes_grib_new_from_samples(f"regular_ll_pl_grib{edition}")
    keys = {"dataDate": date, "shortName": "t", "level": 500}
    if edition == 1:
        keys |= {"unitOfTimeRange": unit, "P1": first, "P2": first + length, "timeRangeIndicator": 3 if length else 0}
    else:
        keys |= {"productDefinitionTemplateNumber": 8 if length else 0, "indicatorOfUnitOfTimeRange": unit}
        keys |= {"forecastTime": first}
        statistic = {"typeOfStatisticalProcessing": 0, "indicatorOfUnitForTimeRange": unit, "lengthOfTimeRange": length}
        keys |= statistic if length else {}
    for key, value in keys.items():
        eccodes.codes_set(handle, key, value)
    return eccodes.codes_get_message(handle)


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize(("unit", "months"), [(3, 1), (4, 12)], ids=["months", "years"])
def test_grib_counts_months_and_years_by_the_calendar(tmp_path, edition, unit, months):
    starts = [(2020, 1), (2020, 2), (2021, 2), (2021, 12)]
    cases = [(start, first, length) for start in starts for first, length in ((1, 0), (2, 1))]
    written = [message(10000 * y + 100 * m + 1, first, length, unit, edition) for (y, m), first, length in cases]
    (tmp_path / "file.grib").write_bytes(b"".join(written))
    records = Table.of(tmp_path / "file.grib").records
    for record, (start, first, length) in zip(records, cases, strict=True):
        begin, end = (hours(*start, months * count) for count in (first, first + length))
        assert (record["step"], record["interval"]) == (60 * end, 60 * (end - begin))


def test_what_has_no_length_in_hours_is_refused(tmp_path):
    for name, content in {"31": message(20200131, 1, 0, 3), "decade": message(20200101, 1, 0, 5)}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="no lead time 720 h; none of its lead times has a known length in hours"):
            open_ensemble(tmp_path / name, ["t@500"], [720])


def write_netcdf(path, starts, leads, **units):
    axes = {
        "start": ("start", np.asarray(starts, float), {
            "standard_name": "forecast_reference_time", "units": "months since 2020-01-01", "calendar": "360",
        }),
        "lead": ("lead", np.asarray(leads, float), {"standard_name": "forecast_period", "units": "months"}),
        "latitude": ("latitude", [1.0, 0.0], {"units": "degrees_north"}),
        "longitude": ("longitude", [0.0, 1.0], {"units": "degrees_east"}),
    }  # fmt: skip
    values = np.arange(4.0 * len(starts) * len(leads)).reshape(len(starts), len(leads), 2, 2)
    xr.Dataset({"t2m": ([*axes], values, {"units": "K"})}, axes).to_netcdf(path)
    return str(path)


def test_whole_months_of_netcdf_are_read_by_the_calendar(tmp_path):
    found = open_ensemble(write_netcdf(tmp_path / "file.nc", [0, 1], [1, 2]), missing="mask", chunks=None)["2t"]
    for start, month in ((0, 1), (1, 2)):
        for k, lead in enumerate((1, 2)):
            place = {"init_time": f"2020-{month:02}-01", "lead_time": hours(2020, month, lead)}
            np.testing.assert_array_equal(
                found.sel(place).squeeze(), np.arange(4.0).reshape(2, 2) + 4 * (2 * start + k)
            )
    with pytest.raises(InputError, match=r"lead counts parts of months, and a month has no fixed length; convert"):
        open_ensemble(write_netcdf(tmp_path / "half.nc", [0], [2.5]))
