"""Every product in every output: it is what many members of the same distribution say, and no reader takes it for one.

The inputs hold a target in degC, one on a level, and a bounded one; a cell lacks a member, and the second start keeps
its raw members, because two of them are equal.
"""

import eccodes
import numpy as np
import pytest
import xarray as xr
from correction_runs import random_corrector, read_sidecar
from forecast_files import write_forecasts
from grib_parts import GRID, KEYS

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import open_ensemble, summary_fields
from data_pipeline.task import Task
from data_pipeline.writing import Encoder
from models.corrected_files.correct_files import correct_files
from models.corrected_files.input_files import ENDINGS
from models.correction.guards import Guard
from models.engines.torch_engine import TorchEngine
from models.members.options import CorrectionOptions
from models.parallel.mesh import Mesh

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
TARGETS = {"2t": "t2m", "t@850": "t", "10si": "si10"}
PLACES = {"2t": ("heightAboveGround", 2), "t@850": ("isobaricInhPa", 850), "10si": ("heightAboveGround", 10)}
TASK = Task("toy", [*TARGETS], [*TARGETS], [24, 48])
STARTS, LEADS, MEMBERS = np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]"), (24, 48), 5
PRODUCTS = (
    "spread", "quantile 0.9", "mean", "quantile 0.25", "probability 2t >= 8 degC", "probability 2t > 279.15 K",
    "probability t@850 < 281", "probability 10si <= 5", "probability 2t >= 1 degC", "efi", "sot 90", "sot 10",
)  # fmt: skip
FORMATS = {
    "a copy in GRIB": ("in.grib", "out.grib", {}), "new GRIB": ("in.nc", "out.grib", {}),
    "new GRIB of another size": ("in.grib", "out.grib", {"member_count": 3}),
    "a copy in NetCDF": ("in.nc", "out.nc", {}), "new NetCDF": ("in.grib", "out.nc", {}),
    "Zarr": ("in.nc", "out.zarr", {}), "a dataset": ("eager", "", {}), "a lazy dataset": ("lazy", "", {}),
    "a dataset of another size": ("eager", "", {"member_count": 3}),
}  # fmt: skip


def raw():
    """The members by target, (start, lead time, member, H, W); K and m/s."""
    random, shape = np.random.default_rng(4), (2, 2, MEMBERS, *GRID.shape)
    found = {name: 280 + 8 * random.standard_normal(shape) for name in ("2t", "t@850")}
    found["10si"] = np.abs(6 + 3 * random.standard_normal(shape))
    for values in found.values():
        values[1, :, 1] = values[1, :, 0]
    found["2t"][0, 0, 2, 1, 3] = np.nan
    return {name: values.astype("f4").astype("f8") for name, values in found.items()}


@pytest.fixture(scope="module")
def corrector():
    made = random_corrector(TASK)
    made.normalizer.location[2], made.normalizer.scale[2] = 6, 3
    return made


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The folder of the input in each format, and the input as a dataset."""
    folder, members = tmp_path_factory.mktemp("inputs"), raw()
    number = {"number": ("number", [*range(1, MEMBERS + 1)], {"standard_name": "realization"})}
    level = {"level": ("level", [500, 850], {"units": "hPa", "positive": "down", "standard_name": "air_pressure"})}
    aloft = np.stack([members["t@850"] - 30, members["t@850"]], 3)
    fields = {
        "t2m": (("number",), members["2t"] - 273.15, {"units": "degC", "standard_name": "air_temperature"}),
        "t": (("number", "level"), aloft, {"units": "K"}), "si10": (("number",), members["10si"], {"units": "m s-1"}),
    }  # fmt: skip
    write_forecasts(folder / "in.nc", STARTS, LEADS, GRID, fields, number | level)
    keys = {**KEYS, "type": "pf", "stream": "enfo", "numberOfForecastsInEnsemble": MEMBERS, "bitsPerValue": 24}
    encoder = Encoder(GRID, edition=2, productDefinitionTemplateNumber=1, dataTime=0, **keys)
    with (folder / "in.grib").open("wb") as file:
        for name, values in members.items():
            kind, height = PLACES[name]
            for place in np.ndindex(2, 2, MEMBERS):
                own = {"dataDate": 20200101 + place[0], "endStep": LEADS[place[1]], "perturbationNumber": place[2] + 1}
                own |= {"shortName": name.partition("@")[0], "typeOfLevel": kind, "level": height}
                file.write(encoder.encode(values[place], **own))
    dataset = xr.open_dataset(folder / "in.nc", decode_timedelta=True).load().astype("f8")
    return folder, dataset.rename(t2m="2t", si10="10si")


@pytest.fixture(scope="module")
def history(inputs):
    """A file of analyses on 40 days of seven winters, and the analyses by target and valid day."""
    random, path, found = np.random.default_rng(5), inputs[0] / "past.grib", {}
    encoder = Encoder(GRID, edition=2, **{**KEYS, "type": "an", "stream": "oper", "dataTime": 0, "bitsPerValue": 24})
    days = [np.datetime64(f"{year}-12-15") + np.timedelta64(n, "D") for year in range(2011, 2018) for n in range(40)]
    with path.open("wb") as file:
        for day in days:
            for name in TARGETS:
                values = 280 + 8 * random.standard_normal(GRID.shape)
                values = np.abs(values - 274) if name == "10si" else values
                if name == "10si":
                    values[3, 2] = np.nan
                found[name, day] = values.astype("f4").astype("f8")
                kind, height = PLACES[name]
                own = {"shortName": name.partition("@")[0], "typeOfLevel": kind, "level": height}
                file.write(encoder.encode(found[name, day], dataDate=int(str(day).replace("-", "")), **own))
    return path, found


def compared(members, past):
    """Return EFI, SOT(90), SOT(10) and CPF of members (M, H, W) in a climate of past values (N, H, W)."""
    angle = (np.arange(4000) + 0.5) / 4000 * np.pi / 2
    levels, climate = np.sin(angle) ** 2, np.quantile(past, np.sin(angle) ** 2, 0)
    below = np.stack([(members < one).mean(0) for one in climate])
    found = {"efi": 2 * (levels[:, None, None] - below).mean(0)}
    for tail, (inner, outer) in {"sot_90": (0.9, 0.99), "sot_10": (0.1, 0.01)}.items():
        near, far = np.quantile(past, [inner, outer], 0)
        found[tail] = np.clip((np.quantile(members, inner, 0) - far) / (far - near), -10, 10)
    steps = np.arange(0.0005, 1, 0.001)
    above = np.quantile(members, steps, 0) > np.quantile(past, steps, 0)
    up, down = above[500:].argmin(0), above[499::-1].argmax(0)
    high = np.where(above[500:].all(0), 1, 0.5 + up / 1000)
    low = np.where(above[499::-1].any(0), 0.5 - down / 1000, 0)
    found["cpf"] = np.where(np.median(members, 0) > np.median(past, 0), high, low)
    return {kind: field + 0 * past.sum(0) for kind, field in found.items()}


@pytest.fixture(scope="module")
def expected(corrector, inputs, history):
    """Each product by target and text, from 4,000 members of the distribution; (lead time, H, W) of the first start."""
    many = corrector.correct(inputs[1].isel(init_time=[0]), members="quantiles", member_count=4000).isel(init_time=0)
    many = {"2t": many["2t"] + 273.15, "t@850": many["t"].sel(level=850), "10si": many["10si"]}
    values = {name: array.transpose("lead_time", "number", ...).values for name, array in many.items()}
    found = {}
    for name, own in values.items():
        found |= {(name, "mean"): own.mean(1), (name, "spread"): own.std(1)}
        found |= {(name, level): np.quantile(own, level, 1, method="hazen") for level in (0.25, 0.9)}
    found |= {("2t", True, limit): (values["2t"] >= limit).mean(1) for limit in (274.15, 279.15, 281.15)}
    for name, own in values.items():
        by_lead = []
        for lead, members in zip(LEADS, own, strict=True):
            valid = np.datetime64("2020-01-01") + np.timedelta64(lead, "h").astype("timedelta64[D]")
            days = [valid - np.timedelta64(n, "D") for n in range(-15, 16)]
            near = {str(day)[5:] for day in days}
            past = [field for (one, day), field in history[1].items() if one == name and str(day)[5:] in near]
            assert len(past) == 7 * 31
            by_lead.append(compared(members, np.stack(past)))
        found |= {(name, kind): np.stack([one[kind] for one in by_lead]) for kind in by_lead[0]}
    found |= {("t@850", False, 281): (values["t@850"] < 281).mean(1), ("10si", False, 5): (values["10si"] <= 5).mean(1)}
    return {key: np.where(np.isnan(values[key[0]]).any(1), np.nan, field) for key, field in found.items()}


def in_grib(path):
    """Return the products of a file by target, kind, level and limit, as ecCodes reads them, and the other messages."""
    found, others = {}, 0
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            keys = {}
            for name in ("shortName", "typeOfLevel", "level", "dataDate", "endStep", "productDefinitionTemplateNumber"):
                keys[name] = eccodes.codes_get(handle, name, None if name in ("shortName", "typeOfLevel") else int)
            template = keys["productDefinitionTemplateNumber"]
            eccodes.codes_set(handle, "missingValue", 1e30)
            values = eccodes.codes_get_values(handle).reshape(GRID.shape)
            values = np.where(values == 1e30, np.nan, values)
            name = keys["shortName"] + ("@850" if keys["typeOfLevel"] == "isobaricInhPa" else "")
            what = None
            if template == 130:
                relation = eccodes.codes_get(handle, "typeOfRelationToReferenceDataset")
                assert eccodes.codes_get(handle, "sampleSizeOfReferencePeriod") == 7 * 31
                assert eccodes.codes_get(handle, "yearOfStartOfReferencePeriod") == 2011
                length = eccodes.codes_get_array(handle, "lengthOfTimeRangeForReferencePeriod")
                assert (*length,) == (8, 31)
                tail = "scaledValueOfAdditionalParameterForReferencePeriod"
                what = (name, "efi" if relation == 20 else f"sot_{eccodes.codes_get_array(handle, tail)[0]}")
            elif template == 199:
                what = (name, {0: "mean", 4: "spread"}[eccodes.codes_get(handle, "derivedForecast")])
            elif template == 89:
                level = eccodes.codes_get(handle, "quantileValue") / eccodes.codes_get(handle, "totalNumberOfQuantiles")
                what = (name, level)
            elif template == 201:
                above = eccodes.codes_get(handle, "probabilityType") == 3
                limit = eccodes.codes_get(handle, "lowerLimit" if above else "upperLimit")
                what, values = (name, above, limit), values / 100
            eccodes.codes_release(handle)
            if what is None:
                others += 1
            else:
                at = found.setdefault(what, np.full((2, 2, *GRID.shape), np.nan))
                at[keys["dataDate"] - 20200101, LEADS.index(keys["endStep"])] = values
    return found, others


def in_dataset(dataset, names, celsius):
    """Return the same for a dataset of xarray."""
    found = {}
    for target, name in names.items():
        warm = 273.15 if celsius and target == "2t" else 0.0
        for array in (own for key, own in dataset.items() if str(key).startswith(f"{name}_")):
            kind = array.attrs["deepweather_product"]
            array = array.sel(level=850) if "level" in array.dims else array
            extra = [one for one in array.dims if one == "quantile" or "threshold" in one]
            space = "latitude", "longitude"
            array = array.transpose(*extra, *[one for one in array.dims if one not in (*extra, *space)], *space)
            if kind == "mean":
                found[target, "mean"] = array.values + warm
            elif kind in ("spread", "efi", "sot", "cpf"):
                found[target, array.name.removeprefix(f"{name}_")] = array.values
            else:
                (axis,), side = extra, ()
                if kind == "probability":
                    side = (array[axis].attrs["spp__relative_to_threshold"].startswith("greater"),)
                for own in array:
                    place, values = own[axis].item(), own.values
                    key = (*side, round(place + warm, 6)) if side else (place,)
                    found[target, *key] = values if side else values + warm
    return found


def run(corrector, source, output, options):
    engine = TorchEngine(corrector, Mesh.single().domain(corrector.grid), "cpu")
    kind = next(name for name, endings in ENDINGS.items() if output.suffix in endings)
    return correct_files([engine], [source], output, Mesh.single(), options, guards=[Guard("raw")], output_type=kind)


@pytest.mark.parametrize(
    ("kind", "alone"),
    [*((kind, False) for kind in FORMATS), *((kind, True) for kind in FORMATS if not FORMATS[kind][2])],
)
def test_products_are_those_of_the_distribution(kind, alone, corrector, inputs, history, expected, tmp_path):
    (source, target, further), (folder, dataset) = FORMATS[kind], inputs
    products = PRODUCTS if target.endswith("grib") else (*PRODUCTS, "cpf")
    past, made = {"history": (str(history[0]),)}, 34 + 6 * (len(products) - 9)
    options = CorrectionOptions(products=products, **past, **({"members": "none"} if alone else further))
    output = tmp_path / (target or "none")
    copied = kind == "a copy in NetCDF" and not alone
    if target:
        done = run(corrector, folder / source, output, options)
        counts = f"{made} products were written: 6 of spread, 6 of quantile 0.9, 6 of mean, 6 of quantile 0.25, 2 of "
        assert sum(note.startswith(counts) for note in done.notes) == 1
        assert "2 of 4 forecasts keep their raw members and have no products" in done.notes
        assert (done.messages == made) if alone else (done.messages >= 12 * options.member_count if further else 60)
        assert read_sidecar(output)["counts"]["products"] == made
        missing = "efi of 10si is missing in 2 cells of 2 forecasts: the climate has too few past analyses there, "
        assert sum(note.startswith(missing) for note in done.notes) == 1
    if output.suffix == ".grib":
        found, others = in_grib(output)
        assert others == (0 if alone else done.messages)
    elif target:
        with xr.open_zarr(output) if output.suffix == ".zarr" else xr.open_dataset(output) as data:
            found = in_dataset(data.load(), TARGETS if copied else TARGETS | {"t@850": "t_850"}, copied)
        follows_the_conventions(data)
    else:
        given = dataset.isel(init_time=[0]) if further else dataset
        given = given.chunk(init_time=1, lead_time=1) if source == "lazy" else given
        wanted = {"members": "none"} if alone else further
        result = corrector.correct(given, products=products, history=str(history[0]), on_problem="raw", **wanted)
        assert ("number" in result.dims) != alone
        found = in_dataset(result.compute(), {"2t": "2t", "t@850": "t", "10si": "10si"}, True)
    expected = {key: field for key, field in expected.items() if key[1] != "cpf" or "cpf" in products}
    assert found.keys() == expected.keys()
    tolerances = {"spread": 0.02, "sot_90": 0.02, "sot_10": 0.02, "efi": 0.01}
    for key, values in expected.items():
        atol = 2e-3 if len(key) == 3 else tolerances.get(key[1], 5e-3)
        if key[1] == "cpf":  # where the quantiles of forecast and climate are nearly parallel, members cannot tell it
            np.testing.assert_array_equal(np.isnan(found[key][0]), np.isnan(values))
            assert (np.abs(found[key][0] - values)[~np.isnan(values)] < 0.01).mean() > 0.9
            continue
        np.testing.assert_allclose(found[key][0], values, rtol=0, atol=atol, err_msg=str(key))
        assert np.isnan(found[key][1:]).all(), key


@pytest.mark.parametrize("kind", ["a copy in GRIB", "a copy in NetCDF", "Zarr"])
def test_readers_take_no_product_for_a_member(kind, corrector, inputs, history, tmp_path):
    """The levels 0.25 and 0.75 are those of two members, as percentile files have them."""
    (source, target, _), folder = FORMATS[kind], inputs[0]
    products = ("mean", "spread", "quantile 0.25", "quantile 0.75", "probability 2t > 279.15 K", "efi", "sot 90")
    further = {"products": products, "history": (str(history[0]),)}
    wanted = {"plain": {}, "both": further, "alone": {"members": "none", **further}}
    outputs = {name: tmp_path / f"{name}{(tmp_path / target).suffix}" for name in wanted}
    for name, options in wanted.items():
        run(corrector, folder / source, outputs[name], CorrectionOptions(**options))
    plain, both = (open_ensemble(outputs[name], TASK.targets, LEADS, chunks=None) for name in ("plain", "both"))
    xr.testing.assert_equal(both, plain)
    assert {"2t", "t", "10si"} == {*open_ensemble(outputs["both"])}
    with pytest.raises(InputError, match=r"that correct has written|has 2t only as 4 x quantile of 2t"):
        open_ensemble(outputs["alone"], TASK.targets, LEADS)
    for name in ("plain", "both"):
        run(corrector, outputs[name], tmp_path / f"{name}-again.nc", CorrectionOptions())
    again = [
        open_ensemble(tmp_path / f"{name}-again.nc", TASK.targets, LEADS, chunks=None) for name in ("plain", "both")
    ]
    xr.testing.assert_equal(*again)
    kinds = {"members": MEMBERS, "normal": 2} | ({} if target.endswith("grib") else {"quantiles": 2})
    for chosen, count in kinds.items():
        assert len(summary_fields(outputs["both"], TASK.targets, LEADS, chosen)[1].numbers) == count
    if target.endswith("nc"):
        with pytest.raises(InputError, match=r"has a variable .*_mean already; rename it, or leave out products"):
            run(corrector, outputs["both"], tmp_path / "third.nc", CorrectionOptions(products=("mean",)))


def test_what_an_output_cannot_hold_is_refused(corrector, inputs, history, tmp_path, monkeypatch):
    monkeypatch.chdir(history[0].parent)
    for name, options, sentence in (
        ("out.csv", {"products": ("mean",)}, "would be a table, which holds members only; name a NetCDF file"),
        ("out.nc", {"keys": {"expver": "0079"}}, "keys are keys of GRIB messages; leave keys out for"),
        ("out.grib", {"products": ("cpf",), "history": ("past.grib",)}, "products: cpf has no code in GRIB"),
    ):
        with pytest.raises(InputError, match=sentence):
            run(corrector, inputs[0] / "in.grib", tmp_path / name, CorrectionOptions(**options))
        assert not list(tmp_path.iterdir())


def follows_the_conventions(data):
    """Check that products have units and names, and that all that their attributes name is there."""
    products = [name for name, array in data.items() if "deepweather_product" in array.attrs]
    assert products
    for name in products:
        array = data[name]
        assert {"standard_name", "long_name"} & {*array.attrs}
        assert all(axis in data.coords for axis in array.dims)
        assert {*array.encoding.get("coordinates", "").split()} <= {*data.variables}
        assert array.encoding["_FillValue"] > 1e36
        assert (array.units == "1") == (array.deepweather_product in ("probability", "efi", "sot", "cpf"))
        methods = {"mean": "realization: mean", "spread": "realization: standard_deviation"}
        assert array.attrs.get("cell_methods", "").endswith(methods.get(array.deepweather_product, ""))
