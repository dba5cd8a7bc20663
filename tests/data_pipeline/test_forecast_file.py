"""Forecasts of others in files: members, mean and standard deviation, quantiles; and what is refused."""

from itertools import product

import numpy as np
import pytest
from forecast_files import write_forecasts
from grib_parts import plain_message

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sources.forecast_file import ForecastFile
from data_pipeline.task import Task, Variable
from data_pipeline.variables.meaning import Meaning

GRID = Grid.regular(4, 6)
STARTS = np.datetime64("2016-01-05", "s") + np.arange(3) * np.timedelta64(4, "D")
SECONDS = STARTS.astype("datetime64[s]").astype(np.int64)
TASK = Task("t2m", ["2t"], ["2t"], [24, 48])
RNG = np.random.default_rng(0)
FIELDS = RNG.normal(280, 5, (3, 2, 4, 6))
MEMBERS = RNG.normal(280, 5, (3, 2, 5, 4, 6))


def opened(path, task=TASK, **options):
    file = ForecastFile.parse("ngr", {"path": str(path), **options})
    return file.open(task, GRID, [Meaning.stated(target, task.lead_times) for target in task.targets], None)


def written(tmp_path, variables, further=None, name="file.nc", leads=(24, 48)):
    return write_forecasts(tmp_path / name, STARTS, leads, GRID, variables, further)


def celsius(spread=False):
    """Values in degrees Celsius of fields in kelvin; a spread has no offset."""
    return FIELDS / 100 if spread else FIELDS - 273.15


@pytest.mark.parametrize("name", ["file.nc", "file.zarr"])
def test_members(tmp_path, name):
    path = written(tmp_path, {"t2m": (("number",), MEMBERS, {"units": "K"})}, {"number": ("number", range(5))}, name)
    found = opened(path)
    assert found.kind == "members"
    read = found.read([SECONDS[2], SECONDS[0]], [48, 24])
    np.testing.assert_allclose(read[:, 0, 0], MEMBERS[2, 1], rtol=1e-6)
    np.testing.assert_allclose(read[:, 1, 0], MEMBERS[0, 0], rtol=1e-6)
    tile = found.read([SECONDS[1]], [24], slice(1, 3), slice(2, 5))
    np.testing.assert_allclose(tile[:, 0, 0], MEMBERS[1, 0, :, 1:3, 2:5], rtol=1e-6)


CELSIUS = {"units": "degC"}
NORMAL = {
    "names": {"t2m_mean": CELSIUS, "t2m_std": CELSIUS},
    "cell methods": {
        "mu": CELSIUS | {"standard_name": "air_temperature", "cell_methods": "realization: mean"},
        "sigma": CELSIUS | {"standard_name": "air_temperature", "cell_methods": "realization: standard_deviation"},
    },
    "standard names": {"t2m": CELSIUS | {"cell_methods": "number: mean"}, "error": CELSIUS},
    "GRIB types": {
        "a": {"GRIB_shortName": "2t", "GRIB_dataType": "em"},
        "b": {"GRIB_shortName": "2t", "GRIB_dataType": "es"},
    },
    "user's names": {"loc": CELSIUS, "scale": CELSIUS},
}


@pytest.mark.parametrize("kind", NORMAL)
def test_mean_and_standard_deviation_are_recognised_and_converted(tmp_path, kind):
    """2 degC of spread are 2 K, not 275.15 K."""
    (mean, own), (std, other) = NORMAL[kind].items()
    own, other = {"units": "degC"} | own, {"units": "degC"} | other
    further = {"height": ((), 2.0, {"units": "m", "standard_name": "height"})}
    options = {"variable_names": {"loc": "2t_mean", "scale": "2t_std"}} if kind == "user's names" else {}
    if kind == "standard names":
        other["standard_name"] = "air_temperature standard_error"
    path = written(tmp_path, {mean: ((), celsius(), own), std: ((), celsius(spread=True), other)}, further)
    found = opened(path, **options)
    assert found.kind == "normal"
    read = found.read(SECONDS, [48] * 3)[:, :, 0]
    np.testing.assert_allclose(read[0], FIELDS[:, 1], rtol=1e-6)
    np.testing.assert_allclose(read[1], FIELDS[:, 1] / 100, rtol=1e-6)


@pytest.mark.parametrize(("dimension", "attributes"), [("quantile", {}), ("percentile", {"units": "%"})])
def test_quantiles_are_sorted_by_their_levels(tmp_path, dimension, attributes):
    levels = np.array([0.1, 0.5, 0.25, 0.9, 0.75]) * (100 if dimension == "percentile" else 1)
    further = {dimension: (dimension, levels, attributes)}
    found = opened(written(tmp_path, {"t2m": ((dimension,), MEMBERS, {"units": "K"})}, further))
    assert found.kind == "quantiles"
    np.testing.assert_allclose(found.levels, [0.1, 0.25, 0.5, 0.75, 0.9], rtol=1e-9)
    read = found.read([SECONDS[1]], [24])[:, 0, 0]
    np.testing.assert_allclose(read, MEMBERS[1, 0][[0, 2, 1, 4, 3]], rtol=1e-6)


def test_forecasts_that_lack_a_member_or_a_start_are_named(tmp_path):
    path = written(tmp_path, {"t2m": (("number",), MEMBERS, {"units": "K"})}, {"number": ("number", range(5))})
    later = write_forecasts(
        tmp_path / "later.nc", STARTS[:1] + np.timedelta64(40, "D"), [24, 48], GRID,
        {"t2m": (("number",), MEMBERS[:1, :, :4], {"units": "K"})}, {"number": ("number", range(4))},
    )  # fmt: skip
    file = ForecastFile.parse("ngr", [str(path), str(later)])
    found = file.open(TASK, GRID, [Meaning.stated(TASK.targets[0], TASK.lead_times)], None)
    late = SECONDS[0] + 40 * 86400  # has no fifth member
    lost = found.lacking(np.array([*SECONDS, late, late + 86400]), np.array([24] * 5))
    assert [(one.key, one.reason, one.channels) for one in lost] == [
        ((late, 24), "no_forecast", ("ngr",)),
        ((late + 86400, 24), "no_forecast", ("ngr",)),
    ]
    with pytest.raises(InputError, match="none of the 1 forecasts that are scored: it starts between 2016-01-05"):
        found.lacking(np.array([late + 86400]), np.array([24]))


def refused(tmp_path, variables, further=None, task=TASK, **options):
    with pytest.raises(InputError) as error:
        opened(written(tmp_path, variables, further), task, **options)
    assert "forecasts.ngr" in str(error.value)
    return str(error.value)


KELVIN = {"units": "K"}
QUANTILES = {"t2m": (("quantile",), MEMBERS, KELVIN)}
BOTH = {"t2m": (("number", "quantile"), MEMBERS[:, :, :, None].repeat(2, 3), KELVIN)}


@pytest.mark.parametrize(
    ("variables", "further", "options", "sentence"),
    [
        ({"t2m_mean": ((), FIELDS, KELVIN)}, {}, {}, "has a mean, which is no forecast of any kind"),
        ({"t2m_mean": ((), FIELDS, KELVIN)}, {}, {"kind": "quantiles"}, "no forecast of the kind quantiles"),
        ({"t2m": ((), FIELDS, KELVIN)}, {}, {}, "has one member only"),
        (QUANTILES, {"quantile": [0.0, 0.25, 0.5, 0.75, 1.0]}, {}, "leave out the minimum and the maximum"),
        (QUANTILES, {}, {}, "have no values"),
        (BOTH, {"quantile": [0.2, 0.8], "number": range(5)}, {}, "has members (number) and quantiles (quantile)"),
        ({"t2m": (("quantile",), MEMBERS[:, :, :1], KELVIN)}, {"quantile": [0.5]}, {}, "has one quantile only"),
        ({"tcc": (("number",), MEMBERS, {})}, {}, {}, "has no 2t"),
    ],
)
def test_what_is_no_forecast_is_refused(tmp_path, variables, further, options, sentence):
    coordinates = {name: (name, values) for name, values in further.items()}
    assert sentence in refused(tmp_path, variables, coordinates, **options)


def test_other_leads_and_grids_are_refused(tmp_path):
    members = {"t2m": (("number",), MEMBERS, KELVIN)}
    task = Task("t2m", ["2t"], ["2t"], [24, 72])
    assert "has no lead time 72 h; it has 24, 48 h" in refused(tmp_path, members, task=task)
    other = {"t2m": (("number",), MEMBERS[..., :5], KELVIN)}
    with pytest.raises(InputError, match="the ensemble 4 x 6"):
        opened(write_forecasts(tmp_path / "other.nc", STARTS, [24, 48], Grid.regular(4, 5), other))


def test_intervals_of_amounts_are_compared(tmp_path):
    rain = Task("tp", ["tp"], ["tp"], [24, 48])
    amounts = {"tp": (("number",), abs(MEMBERS), {"units": "m"})}
    text = refused(tmp_path, amounts, task=rain)
    assert "does not state the intervals of tp" in text
    assert "intervals: {tp: since_start}" in text
    path = written(tmp_path, amounts)
    file = ForecastFile.parse("ngr", {"path": str(path), "intervals": {"tp": "24h"}})
    meaning = Meaning(Variable("tp"), "m", (1440, 1440))
    assert file.open(rain, GRID, [meaning], None).fields.meanings[0].intervals == (1440, 1440)
    with pytest.raises(InputError, match="tp at lead time 24 h over 24 h, not 12 h as the ensemble"):
        file.open(rain, GRID, [Meaning(Variable("tp"), "m", (720, 720))], None)


def test_quantiles_of_amounts_are_not_added(tmp_path):
    """The quantile of a sum is not the sum of the quantiles."""
    rain = Task("tp", ["tp:24h"], ["tp:24h"], [48])
    amounts = {"tp": (("quantile",), np.sort(abs(MEMBERS), axis=2), {"units": "m"})}
    further = {"quantile": ("quantile", [0.1, 0.3, 0.5, 0.7, 0.9])}
    text = refused(tmp_path, amounts, further, rain, intervals={"tp": "since_start"})
    assert "has quantiles over other intervals or of other variables than tp:24h" in text


def test_malformed_options_are_refused():
    for option, sentence in (
        ({"path": "a.nc", "member": 3}, "forecasts.ngr has no option member; there is: path, kind, drawn,"),
        ({"kind": "members"}, "forecasts.ngr must be a path, a list of paths, or"),
        ({"path": "a.nc", "kind": "normals"}, "forecasts.ngr.kind must be one of members, normal, quantiles"),
        ({"path": "a.nc", "drawn": "no"}, "forecasts.ngr.drawn must be true or false, got 'no'"),
        ({"path": "a.nc", "variable_names": "t2m"}, "forecasts.ngr.variable_names must be"),
        ({"path": "a.nc", "intervals": {"2t": "1h"}}, "forecasts.ngr.intervals: 2t is instantaneous"),
    ):
        with pytest.raises(InputError, match=sentence.replace(".", r"\.")):
            ForecastFile.parse("ngr", option)


def test_the_fingerprint_follows_contents_and_options_not_the_path(tmp_path):
    path = written(tmp_path, {"t2m": ((), FIELDS, KELVIN)})
    copy = tmp_path / "copy.nc"
    copy.write_bytes(path.read_bytes())
    fingerprint = ForecastFile.parse("a", str(path)).fingerprint
    assert ForecastFile.parse("b", str(copy)).fingerprint == fingerprint
    assert ForecastFile.parse("a", {"path": str(path), "drawn": False}).fingerprint != fingerprint
    assert ForecastFile.parse("a", {"path": str(path), "variable_names": {"x": "2t"}}).fingerprint != fingerprint
    other = written(tmp_path, {"t2m": ((), FIELDS + 1, KELVIN)}, name="other.nc")
    assert ForecastFile.parse("a", str(other)).fingerprint != fingerprint
    with pytest.raises(InputError, match=r"forecasts\.a: .*nothing\.nc"):
        _ = ForecastFile.parse("a", str(tmp_path / "nothing.nc")).fingerprint


def test_ensemble_mean_and_spread_in_grib(tmp_path):
    """Messages with the product template of ensemble statistics; members in the same file are another kind."""
    path, messages = tmp_path / "file.grib", []
    globe = {
        "latitudeOfFirstGridPointInDegrees": 90, "latitudeOfLastGridPointInDegrees": -90,
        "longitudeOfLastGridPointInDegrees": 300,
    }  # fmt: skip
    kinds = [(2, {"derivedForecast": 0}, FIELDS), (2, {"derivedForecast": 4}, FIELDS / 100)]
    kinds += [(1, {"perturbationNumber": number}, MEMBERS[:, :, number]) for number in (1, 2, 3)]
    for start, lead, (template, own, values) in product(range(3), range(2), kinds):
        keys = {"productDefinitionTemplateNumber": template, "typeOfLevel": "surface", "shortName": "2t", **own}
        keys |= {"dataDate": 20160105 + 4 * start, "dataTime": 0, "step": (24, 48)[lead]}
        messages.append(plain_message(2, values[start, lead], 24, **globe, **keys))
    path.write_bytes(b"".join(messages))
    with pytest.raises(InputError, match="the kinds members and normal; choose one with kind=members"):
        opened(path)
    found = opened(path, kind="normal").read([SECONDS[2]], [48])[:, 0, 0]
    np.testing.assert_allclose(found[0], FIELDS[2, 1], rtol=1e-6)
    np.testing.assert_allclose(found[1], FIELDS[2, 1] / 100, rtol=1e-5)
    members = opened(path, kind="members").read([SECONDS[0]], [24])[:, 0, 0]
    np.testing.assert_allclose(members, MEMBERS[0, 0, 1:4], rtol=1e-6)
