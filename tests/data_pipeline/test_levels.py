"""What a variable is besides its name: ensemble and truth on two levels are refused in every format, other encodings of
one level are accepted, and analyses of several members are refused."""

from itertools import permutations, product

import numpy as np
import pytest
import xarray as xr

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.formats.open import analysis_fields, ensemble_fields, open_analysis, open_ensemble
from data_pipeline.grid import Grid
from data_pipeline.sources.array_source import ArraySource
from data_pipeline.sources.forecast_file import ForecastFile
from data_pipeline.store import Store
from data_pipeline.task import Task, Variable
from data_pipeline.variables.meaning import LEVEL_ATTRIBUTE, UNKNOWN, Meaning, check_targets, differences, list_unknown
from data_pipeline.writing import Encoder

GRID = Grid.regular(3, 4)
START, LEAD = np.datetime64("2020-01-01", "ns"), 24
RNG = np.random.default_rng(0)
LEVELS = {
    "theta 300": ("theta", 300, {"units": "K"}),
    "heightAboveGround 80": ("heightAboveGround", 80, {"standard_name": "height", "units": "m"}),
    "heightAboveGround 100": ("heightAboveGround", 100, {"units": "m"}),
    "theta 315": ("theta", 315, {"units": "K"}),
    "potentialVorticity 2000": ("potentialVorticity", 2000, {}),
    "depth 5": ("depthBelowSea", 5, {"standard_name": "depth", "units": "m"}),
    "tropopause": ("tropopause", 0, {}),
    "surface": ("surface", 0, {}),
}
"""Text, GRIB's type and value, and the attributes of the coordinate of CF, which has the name of the type."""


def dataset_of(name, place, members, forecast, units="K"):
    """Return a field of each member at a place, or at None; a truth is valid when the forecast is."""
    outer = {
        "init_time": ("init_time", [START], {"standard_name": "forecast_reference_time"}),
        "lead_time": ("lead_time", [LEAD], {"standard_name": "forecast_period", "units": "hours"}),
    } if forecast else {"time": ("time", [START + np.timedelta64(LEAD, "h")], {"standard_name": "time"})}  # fmt: skip
    coordinates = outer | {
        "number": ("number", list(members), {"standard_name": "realization"}),
        "latitude": ("latitude", list(GRID.latitudes), {"units": "degrees_north"}),
        "longitude": ("longitude", list(GRID.longitudes), {"units": "degrees_east"}),
    }
    values = RNG.normal(280, 5, [len(axis[1]) for axis in coordinates.values()]).astype("f4")
    if place:
        kind, value, attributes = place
        coordinates[kind] = ((), float(value), attributes)
    return xr.Dataset({name: ([*coordinates][: values.ndim], values, {"units": units})}, coordinates)


def write_grib(path, name, place, members, forecast):
    kind, value, _ = place
    keys = {"dataDate": 20200101, "step": LEAD} if forecast else {"dataDate": 20200102, "step": 0}
    keys |= {"dataTime": 0, "shortName": name, "typeOfLevel": kind} | ({"level": value} if value else {})
    encoder = Encoder(GRID, edition=2, productDefinitionTemplateNumber=1, bitsPerValue=24)
    messages = (encoder.encode(RNG.normal(280, 5, (3, 4)), perturbationNumber=number, **keys) for number in members)
    path.write_bytes(b"".join(messages))


def write_netcdf(path, *of_data):
    dataset_of(*of_data).to_netcdf(path)


def write_zarr(path, *of_data):
    dataset_of(*of_data).to_zarr(path, zarr_format=2, write_empty_chunks=True)


FORMATS = {"grib": write_grib, "nc": write_netcdf, "zarr": write_zarr}


def write(path, name, place, *, forecast, members=None):
    """Write one part of an archive in the format of the path's ending; return the path."""
    FORMATS[path.suffix[1:]](path, name, place, members or ((1, 2) if forecast else (0,)), forecast)
    return str(path)


def archive(folder, ensemble, truth, name="t"):
    """Write an ensemble and its truth, each in a format and at a place."""
    one = write(folder / f"ensemble.{ensemble[0]}", name, ensemble[1], forecast=True)
    return Archive([one], [write(folder / f"analysis.{truth[0]}", name, truth[1], forecast=False)])


def opened(source, name="t"):
    """Open the samples of a source, as every verb does."""
    return ForecastDataset(source, Task("any", [name], [name], [LEAD]), [2020])


@pytest.mark.parametrize("ending", ["grib", "nc"])
def test_files_say_the_level_of_a_variable_without_one(tmp_path, ending):
    for text, place in LEVELS.items():
        path = write(tmp_path / f"{text}.{ending}", "t", place, forecast=False)
        (meaning,) = analysis_fields(path, [Variable("t")]).meanings
        assert meaning.level == text


MODEL_LEVELS = {
    kind: (kind, 60, {"standard_name": "model_level_number"} if kind == "hybrid" else {})
    for kind in ("hybrid", "generalVerticalLayer")
}


@pytest.mark.parametrize("kind", MODEL_LEVELS)
@pytest.mark.parametrize("ending", FORMATS)
def test_model_levels_are_part_of_the_name_and_their_type_is_the_level(tmp_path, ending, kind):
    """They cannot be mistaken for pressure, and several of them are read at once."""
    paths, (name, _, attributes) = {}, MODEL_LEVELS[kind]
    for level in (60, 61):
        paths[level] = write(tmp_path / f"{level}.{ending}", "t", (name, level, attributes), forecast=True)
    found = open_ensemble([*paths.values()], chunks=None)
    assert set(found) == {"t_ml60", "t_ml61"}
    for level, path in paths.items():
        options = {"grib": {"engine": "cfgrib", "indexpath": ""}, "nc": {}, "zarr": {"engine": "zarr"}}[ending]
        with xr.open_dataset(path, **options) as one:
            np.testing.assert_array_equal(found[f"t_ml{level}"].values.squeeze(), one.t.values.squeeze())
    (meaning,) = ensemble_fields([*paths.values()], [Variable("t_ml61")], [LEAD]).meanings
    assert (meaning.level, meaning.units, meaning.variable.model_level) == (kind, "K", 61)
    assert (meaning.variable.bounds, meaning.variable.law) == (Variable("t").bounds, Variable("t").law)
    other = next(value for key, value in MODEL_LEVELS.items() if key != kind)
    truth = write(tmp_path / f"truth.{ending}", "t", other, forecast=False)
    with pytest.raises(InputError, match=f"t_ml60 lies on {kind} in the ensemble and on {other[0]} in the analysis"):
        opened(Archive([paths[60]], [truth]), "t_ml60")


def test_an_axis_of_model_levels(tmp_path):
    levels = [dataset_of("t", ("hybrid", level, {}), (1, 2), True) for level in (60, 61)]
    xr.concat(levels, "hybrid").to_netcdf(tmp_path / "file.nc")
    found = open_ensemble(str(tmp_path / "file.nc"), ["t_ml60", "t_ml61"], chunks=None)
    for level, one in zip((60, 61), levels, strict=True):
        np.testing.assert_array_equal(found[f"t_ml{level}"], one.t.transpose(*found[f"t_ml{level}"].dims))
    named = open_ensemble(str(tmp_path / "file.nc"), names={"t": "own"}, chunks=None)
    assert set(named) == {"own_ml60", "own_ml61"}
    with pytest.raises(InputError, match=r"its dimension hybrid \(2 values\) is not recognised"):
        open_ensemble(str(tmp_path / "file.nc"), names={"t": "own_ml60"})


PAIRS = [("grib", "nc"), ("nc", "zarr"), ("grib", "grib")]


@pytest.mark.parametrize("formats", PAIRS, ids="-".join)
@pytest.mark.parametrize(
    "levels", [("theta 300", "tropopause"), ("heightAboveGround 80", "heightAboveGround 100")], ids=["type", "value"]
)
def test_ensemble_and_truth_on_two_levels_are_refused(tmp_path, formats, levels):
    one, other = ((ending, LEVELS[text]) for ending, text in zip(formats, levels, strict=True))
    with pytest.raises(InputError, match=f"t lies on {levels[0]} in the ensemble and on {levels[1]} in the analysis"):
        opened(archive(tmp_path, one, other))


@pytest.mark.parametrize("formats", PAIRS, ids="-".join)
def test_equivalent_encodings_are_accepted(tmp_path, formats):
    """`2t` says its height, however a file encodes it; `t` on one level in two formats is one variable."""
    places = ("surface", 0, {}), ("heightAboveGround", 2, {"units": "m"})
    assert opened(archive(tmp_path, *zip(formats, places, strict=True), "2t"), "2t").meanings[0].level == ""
    same = ((ending, LEVELS["theta 300"]) for ending in formats)
    (tmp_path / "aloft").mkdir()
    assert opened(archive(tmp_path / "aloft", *same)).meanings[0].level == "theta 300"


def test_every_pair_of_levels_is_refused_and_an_unknown_level_is_not():
    meanings = {text: Meaning(Variable("t"), "K", (0,), text) for text in (*LEVELS, "")}
    for one, other in permutations(LEVELS, 2):
        with pytest.raises(InputError, match=f"t lies on {one} in the ensemble and on {other}"):
            check_targets([meanings[one]], [meanings[other]], [24])
        assert differences([meanings[one]], [24], [meanings[other]], [24]) == [f"t on {one}, not {other}"]
    for text, (first, second) in product(LEVELS, permutations((True, False))):
        one, other = (meanings[text if known else ""] for known in (first, second))
        check_targets([one], [other], [24])
        assert differences([one], [24], [other], [24]) == []
    assert all(Meaning.from_json(one.to_json()) == one for one in meanings.values())


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("forecast", [True, False], ids=["ensemble", "analysis"])
def test_several_levels_of_one_variable_in_one_part_are_refused(tmp_path, ending, forecast):
    paths = [
        write(tmp_path / f"{text[:3]}.{ending}", "t", LEVELS[text], forecast=forecast, members=(k * forecast,))
        for k, text in enumerate(("theta 300", "tropopause"))
    ]
    for read in (ensemble_fields, open_ensemble) if forecast else (analysis_fields, open_analysis):
        with pytest.raises(InputError, match=r"has t on 2 levels, . x .*, . x .*; name files with one of them"):
            read(paths, [Variable("t")], **({"lead_times": [LEAD]} if forecast else {}))


@pytest.mark.parametrize("ending", FORMATS)
def test_stores_and_datasets_keep_the_level(tmp_path, ending):
    source = archive(tmp_path, (ending, LEVELS["heightAboveGround 80"]), (ending, LEVELS["heightAboveGround 80"]))
    task = Task("any", ["t"], ["t"], [LEAD])
    store = Store.write(source, task, tmp_path / "store")
    assert opened(store).meanings == opened(source).meanings
    assert store.analysis_fields(task.targets).meanings == source.analysis_fields(task.targets).meanings
    ensemble, truth = open_ensemble(source.ensemble, ["t"], [LEAD]), open_analysis(source.analysis, ["t"])
    assert ensemble.t.attrs[LEVEL_ATTRIBUTE] == "heightAboveGround 80"
    assert opened(ArraySource(ensemble, truth)).meanings == opened(source).meanings
    higher = truth.assign(t=truth.t.assign_attrs({LEVEL_ATTRIBUTE: "heightAboveGround 100"}))
    with pytest.raises(InputError, match="t lies on heightAboveGround 80 in the ensemble and on heightAboveGround 100"):
        opened(ArraySource(ensemble, higher))
    ensemble.to_netcdf(tmp_path / "again.nc")
    again = ensemble_fields(str(tmp_path / "again.nc"), task.inputs, [LEAD], names={"t": "t"})
    assert again.meanings[0].level == "heightAboveGround 80"


def test_scalar_coordinates_of_a_dataset_are_its_level():
    ensemble = dataset_of("t", LEVELS["heightAboveGround 80"], (1, 2), True)
    truth = dataset_of("t", ("height", 0.1, {"units": "km", "standard_name": "height"}), (0,), False).isel(number=0)
    with pytest.raises(InputError, match="t lies on heightAboveGround 80 in the ensemble and on heightAboveGround 100"):
        opened(ArraySource(ensemble, truth))


def test_a_scalar_of_another_variable_of_the_file_does_not_count(tmp_path):
    """Only `gust` lists the height in its attribute `coordinates`."""
    both = dataset_of("t", None, (0,), False).isel(number=0, drop=True)
    both["gust"] = both.t.assign_attrs(coordinates="height")
    both["height"] = (), 80.0, {"units": "m", "standard_name": "height"}
    both.to_netcdf(tmp_path / "file.nc")
    assert analysis_fields(str(tmp_path / "file.nc"), [Variable("gust")]).meanings[0].level == "heightAboveGround 80"
    assert analysis_fields(str(tmp_path / "file.nc"), [Variable("t")]).meanings[0].level == ""


@pytest.mark.parametrize("ending", ["grib", "nc"])
def test_forecasts_of_others_on_another_level_are_refused(tmp_path, ending):
    path = write(tmp_path / f"file.{ending}", "t", LEVELS["theta 315"], forecast=True)
    task = Task("any", ["t"], ["t"], [LEAD])
    own = Meaning(Variable("t"), "K", (0,), "theta 300")
    with pytest.raises(InputError, match="has t on theta 315, not theta 300 as the ensemble"):
        ForecastFile.parse("other", path).open(task, GRID, [own], None)


# Analyses of several members


def hourly(path, members, hours=2):
    """Write amounts of each hour as analyses of several members."""
    found = xr.concat([dataset_of("tp", None, members, False, "m")] * hours, "time")
    hour = np.timedelta64(1, "h")
    found = found.assign_coords(time=("time", START + np.arange(1, hours + 1) * hour, {"bounds": "ends"}))
    found["ends"] = ("time", "two"), np.stack([found.time - hour, found.time], 1)
    found.time.encoding["units"] = found.ends.encoding["units"] = "hours since 2020-01-01"
    found["tp"].attrs["cell_methods"] = "time: sum"
    found.to_netcdf(path)
    return str(path)


@pytest.mark.parametrize("ending", [*FORMATS, "hourly.nc"])
def test_analyses_of_several_members_are_refused(tmp_path, ending):
    """Also where they are made from the amounts of each hour."""
    variable = Variable.parse("tp:2h" if ending.startswith("hourly") else "2t")
    height = ("heightAboveGround", 2, {"units": "m"})

    def make(name, members):
        path = tmp_path / f"{name}.{ending}"
        return (
            hourly(path, members)
            if variable.name == "tp"
            else write(path, "2t", height, forecast=False, members=members)
        )

    assert analysis_fields(make("one", (3,)), [variable]).numbers == (0,)
    path = make("two", (3, 7))
    for read in (analysis_fields, open_analysis):
        with pytest.raises(InputError, match=r"two\..* of members 3 and 7, 2 members in all, and the truth is one ana"):
            read(path, [variable])


# What may be compared


def meaning(text, units="m", *intervals):
    return Meaning(Variable.parse(text), units, intervals)


def test_targets_that_mean_something_else_are_refused():
    for ensemble, truth, sentence in (
        (("tp", "m", 1440, 2880), ("tp", "m", 60), r"tp covers 24 h in the ensemble at lead time 24 h and 1 h in the"),
        (("tp", "m", 1440, 2880), ("tp", "m", 1440), r"covers 48 h .* lead time 48 h and 24 h .* such as tp:24h$"),
        (("tp", "m", UNKNOWN, 360), ("tp", "m", 360), r"in the ensemble at lead time 24 h is unknown.*{ensemble: {tp"),
        (("tp", "m", 360, 360), ("tp", "m", UNKNOWN), r"in the analysis is unknown.*intervals={analysis: {tp: 6h}}"),
        (("2t:mean", "K", 60, 60), ("2t:mean", "K", 1440), "give the task one period for both, such as 2t:24h-mean"),
        (("smoke", "kg", 0, 0), ("smoke", "g", 0), "smoke is in kg in the ensemble and in g in the analysis; convert"),
        (("smoke", "kg", 0, 0), ("smoke", "", 0), "in kg in the ensemble and in unknown units in the analysis"),
    ):
        same = meaning("2t", "K", 0, 0), meaning("2t", "K", 0)
        with pytest.raises(InputError, match=sentence):
            check_targets([same[0], meaning(*ensemble)], [same[1], meaning(*truth)], [24, 48])


def test_differences_count_shared_lead_times_and_known_intervals():
    own = [meaning("2t", "K", 0, 0), meaning("tp", "m", 360, 720), meaning("cp", "m", UNKNOWN, 720)]
    other = [meaning("2t", "K", 0), meaning("tp", "m", 720), meaning("cp", "m", 720)]
    assert differences(own, [6, 12], other, [12]) == []
    assert differences(own, [6, 12], other, [6]) == ["tp at lead time 6 h over 6 h, not 12 h"]
    celsius = [meaning("2t", "degC", 0)]
    assert differences(celsius, [6], other[:1], [6]) == ["2t in degC, not K"]


def test_unknown_intervals_are_counted_and_named():
    inputs = [meaning("tp", "m", UNKNOWN), meaning("2t", "K", 0), meaning("cp", "m", UNKNOWN)]
    assert list_unknown(inputs).startswith("2 inputs cover intervals of unknown or varying length: tp, cp;")
    assert list_unknown(inputs).endswith("data.archive.intervals can, for instance {tp: 6h}")
    assert list_unknown(inputs[1:2]) == ""
