"""Processing over time, intervals and units of NetCDF variables, from attributes and bounds to fields, meanings and the
summary of the contents."""

import numpy as np
import pytest
from netcdf_parts import VALID, K, ramp, read, variables

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_contents import summarize_files
from data_pipeline.formats.netcdf.netcdf_catalog import NetCDFCatalog
from data_pipeline.formats.open import analysis_fields, ensemble_fields, open_analysis

SINCE = {"units": "hours since 2000-01-01"}
DAYS = np.array([[0.0, 24.0], [24.0, 48.0]])
"""Two days, in hours since 2000-01-01."""


def times(position, name="time", **more):
    """The time of two days, at a position between 0, their start, and 1, their end; with bounds."""
    values = DAYS[:, 0] + position * 24
    return {
        name: (("time",), values, {**SINCE, "standard_name": "time", "bounds": "cells", **more}),
        "cells": (("time", "bnds"), DAYS, {}),
    }


def daily(method="time: mean", **attributes):
    return {"t2m": (("time", "lat", "lon"), ramp(2, 4, 6), {**K, "cell_methods": method, **attributes})}


def stamps(fields):
    return fields.init_times.astype("datetime64[h]").astype(str).tolist()


@pytest.mark.parametrize("position", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("unit", ["hours", "days"])
def test_a_mean_is_valid_at_the_end_of_its_bounds(file, position, unit):
    """Also where the bounds have their own units."""
    coordinates = times(position)
    if unit == "days":
        coordinates["cells"] = (("time", "bnds"), DAYS / 24, {"units": "days since 2000-01-01"})
    path = file(coordinates, daily())
    with pytest.raises(InputError, match="has no 2t; it has 2t:mean"):
        analysis_fields(path, variables("2t"))
    fields = analysis_fields(path, variables("2t:mean"))
    assert fields.meanings[0].intervals == (1440,)
    assert stamps(fields) == ["2000-01-02T00", "2000-01-03T00"]
    np.testing.assert_array_equal(read(fields, 1)[0, 0], ramp(2, 4, 6)[1])
    summary = summarize_files(path, catalog=NetCDFCatalog)
    assert "intervals    2t mean over 24 h" in summary
    said = "times        2 fields of 2t are valid at the end of their bounds, not at the file's time"
    assert (said in summary) == (position < 1)


def test_instantaneous_fields_keep_their_times(file):
    """Other variables of a file often share its times and bounds."""
    path = file(times(0.5), daily("time: point"))
    fields = analysis_fields(path, variables("2t"))
    assert stamps(fields) == ["2000-01-01T12", "2000-01-02T12"]
    assert fields.meanings[0].intervals == (0,)


def test_bounds_without_cell_methods_are_ambiguous(file):
    path = file(times(0.5), {"t2m": (("time", "lat", "lon"), ramp(2, 4, 6), K)})
    with pytest.raises(InputError, match=r"has time bounds but no cell_methods.*ncatted -a cell_methods,t2m,o,c"):
        analysis_fields(path, variables("2t"))
    named = analysis_fields(path, variables("2t:mean"), names={"t2m": "2t:mean"})
    assert named.meanings[0].intervals == (1440,)


@pytest.mark.parametrize(("lead_bounds", "valid_bounds"), [(True, False), (False, True), (True, True)])
def test_intervals_of_forecasts(file, lead_bounds, valid_bounds):
    """Files of the UK Met Office have bounds of lead and valid times."""
    lead = {"units": "hours", "standard_name": "forecast_period"} | ({"bounds": "lead_cells"} if lead_bounds else {})
    valid = {**SINCE, "standard_name": "time"} | ({"bounds": "valid_cells"} if valid_bounds else {})
    coordinates = {
        "forecast_reference_time": ((), 100.0, {**SINCE, "standard_name": "forecast_reference_time"}),
        "forecast_period": (("time",), [3.0, 9.0], lead),
        "lead_cells": (("time", "bnds"), [[0.0, 6.0], [6.0, 12.0]], {}),
        "time": (("time",), [103.0, 109.0], valid),
        "valid_cells": (("time", "bnds"), [[100.0, 106.0], [106.0, 112.0]], {}),
    }
    own = {"units": "kg m-2", "cell_methods": "time: sum"}
    fields = ensemble_fields(
        file(coordinates, {"tp": (("time", "lat", "lon"), ramp(2, 4, 6), own)}), variables("tp"), [6, 12]
    )
    assert fields.lead_times == (6, 12)
    (meaning,) = fields.meanings
    assert (meaning.units, meaning.intervals) == ("m", (360, 360))
    np.testing.assert_allclose(read(fields, 0, 1)[0, 0], ramp(2, 4, 6)[1] / 1000)


@pytest.mark.parametrize(
    ("short_name", "units", "seconds"), [("tp", "kg m-2 s-1", 86.4), ("ssrd", "W m-2", 86400.0), ("tp", "mm/s", 86.4)]
)
def test_mean_rates_are_accumulations(file, short_name, units, seconds):
    """A day has 86400 s; 1 kg m⁻² of water is 1 mm."""
    path = file(
        times(0.5),
        {short_name: (("time", "lat", "lon"), ramp(2, 4, 6), {"units": units, "cell_methods": "time: mean"})},
    )
    fields = analysis_fields(path, variables(short_name))
    assert fields.meanings[0].intervals == (1440,)
    np.testing.assert_allclose(read(fields)[0, 0], ramp(2, 4, 6)[0].astype(float) * seconds, rtol=1e-12)


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [(None, "is a mean rate without time bounds"), ([[0, 24], [24, 72]], "over intervals of different lengths")],
)
def test_rates_need_one_interval(file, cells, sentence):
    coordinates = times(1.0)
    if cells is None:
        coordinates = {"time": (("time",), DAYS[:, 1], {**SINCE, "standard_name": "time"})}
    else:
        coordinates["cells"] = (("time", "bnds"), np.array(cells, float), {})
    own = {"units": "kg m-2 s-1", "cell_methods": "time: mean"}
    path = file(coordinates, {"tp": (("time", "lat", "lon"), ramp(2, 4, 6), own)})
    with pytest.raises(InputError, match=sentence):
        read(analysis_fields(path, variables("tp")))


def test_a_member_that_is_called_mean_is_no_member(file):
    path = file(
        {"time": VALID, "member": (("member",), np.array(["ensemble mean"]), {"standard_name": "realization"})},
        {"t2m": (("time", "member", "lat", "lon"), ramp(2, 1, 4, 6), K)},
    )
    with pytest.raises(InputError, match=r"its member 'ensemble mean' is a statistic"):
        open_analysis(path)


@pytest.mark.parametrize(
    ("units", "own"), [("gpm", {}), ("m", {"standard_name": "geopotential_height"}), ("m", None)], ids=str
)
def test_heights_called_z_are_converted_or_refused_with_the_way_out(file, units, own):
    coordinates = {"time": VALID, "level": ((), 500.0, {"units": "hPa"})}
    path = file(coordinates, {"z": (("time", "lat", "lon"), ramp(2, 4, 6), {"units": units, **(own or {})})})
    if own is None:
        with pytest.raises(InputError, match=r"variable_names={z: gh}.*-mulc,9.80665") as raised:
            analysis_fields(path, variables("z@500"))
        assert "ncatted" not in str(raised.value)
        return
    fields = analysis_fields(path, variables("z@500"))
    np.testing.assert_allclose(read(fields)[0, 0], 9.80665 * ramp(2, 4, 6)[0].astype(float), rtol=1e-12)
    assert fields.meanings[0].units == "m2 s-2"


def test_summarize_files(plain, tmp_path):
    one = plain.cfgrib(tmp_path / "one.nc", {"t2m": K, "weird": {"units": "1"}}, starts=(0, 96))
    two = plain.cfgrib(tmp_path / "two.nc", {"t2m": {"units": "J"}}, starts=(192,))
    three = plain.cfgrib(tmp_path / "three.nc", {"t2m": K}, starts=(96, 240), steps=(0, 24))
    (tmp_path / "four.nc").write_text("no forecast")
    files = [one, two, three, tmp_path / "four.nc"]
    lines = summarize_files(files, catalog=NetCDFCatalog, names={"weird": "slt"}).splitlines()
    summary = dict(line.split(maxsplit=1) for line in lines if not line.startswith(("lead", "not")))
    assert summary["files"].startswith("4, ")
    assert summary["fields"] == "48, 4.61 kB when decoded"
    assert summary["variables"] == "2t slt"
    assert summary["called"] == "2t is t2m, slt is weird"
    assert summary["starts"] == "3, 2000-01-01T00:00 to 2000-01-11T00:00 UTC"
    assert "lead times   0 24 48 h" in lines
    assert summary["members"] == "1 2 3"
    assert summary["grid"] == "4 x 6 points, latitudes 60 to 15, longitudes 0 to 300"
    assert summary["missing"] == "3 of 45"
    assert summary["repeated"] == "6"
    assert [line for line in lines if "not read" in line] == [
        f"not read     {two} (t2m) is in 'J', GRIB has 2t in K; convert its values, for instance with cdo "
        '-setattribute,t2m@units="K" -addc,OFFSET -mulc,FACTOR in.nc out.nc, or give it another name with '
        "data.archive.variable_names",
        f"not read     {tmp_path / 'four.nc'} is text, not NetCDF; name a file of fields",
    ]
