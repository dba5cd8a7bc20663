"""Every legal layout of an ensemble gives the same values at the same coordinates."""

import numpy as np
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.formats.open import ensemble_fields, open_ensemble
from data_pipeline.task import Variable

NAMES = {
    "start": ("time", "init_time", "forecast_reference_time", "S"),
    "lead": ("step", "lead_time", "forecast_period", "L", "prediction_timedelta"),
    "number": ("number", "realization", "member", "ens", "M"),
    "level": ("level", "isobaricInhPa", "plev", "pressure_level"),
    "latitude": ("latitude", "lat", "Y"),
    "longitude": ("longitude", "lon", "X"),
    "valid": ("valid_time",),
    "2t": ("t2m", "T2M", "2m_temperature"),
    "t": ("t", "T", "temperature"),
    "z": ("z", "Z", "geopotential"),
}
STANDARD_NAMES = {
    "start": "forecast_reference_time", "lead": "forecast_period", "number": "realization", "level": "air_pressure",
    "latitude": "latitude", "longitude": "longitude", "valid": "time",
}  # fmt: skip
SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
AXES = ("start", "lead", "number", "level", "latitude", "longitude")


@st.composite
def ensembles(draw):
    """Draw an ensemble in the names, order and units of this project; all values differ."""
    starts = np.array(draw(st.lists(st.integers(0, 400), min_size=1, max_size=3, unique=True)))
    axes = {
        "start": np.datetime64("2016-02-20", "ns") + np.sort(starts) * np.timedelta64(12, "h"),
        "lead": np.sort(draw(st.lists(st.integers(0, 10), min_size=1, max_size=3, unique=True))) * 24,
        "number": np.sort(draw(st.lists(st.integers(0, 50), min_size=1, max_size=3, unique=True))),
        "level": [850, 500], "latitude": [50.0, 40.0, 20.0], "longitude": np.arange(6) * 60.0,
    }  # fmt: skip
    random, fields = np.random.default_rng(0), {}
    for name in ("2t", "t", "z"):
        dimensions = [axis for axis in AXES if axis != "level" or name != "2t"]
        fields[name] = (dimensions, 280 + 10 * random.standard_normal([len(axes[axis]) for axis in dimensions]))
    return xr.Dataset(fields, axes)


LAYOUTS = st.fixed_dictionaries(
    {
        "names": st.fixed_dictionaries({role: st.sampled_from(choices) for role, choices in NAMES.items()}),
        "order": st.permutations(AXES),
        "split": st.sampled_from([None, "start", "lead", "number", "variable"]),
        "valid": st.booleans(),
        "unit": st.sampled_from(list(SECONDS)),
        "lead_unit": st.sampled_from(list(SECONDS)),
        "since": st.sampled_from(["1900-01-01", "1970-01-01 00:00:00", "2016-02-29T12:00:00Z"]),
        "calendar": st.sampled_from(["standard", "gregorian", "proleptic_gregorian"]),
        "format": st.sampled_from(["NETCDF4", "NETCDF3_CLASSIC", "NETCDF3_64BIT", "NETCDF4_CLASSIC"]),
        "standard_names": st.booleans(),
        "listed": st.booleans(),
        "south_first": st.booleans(),
        "turn": st.integers(0, 5),
        "west": st.sampled_from([0, -180, -360]),
        "celsius": st.booleans(),
        "pascal": st.booleans(),
        "packed": st.booleans(),
    }
)


def laid_out(ensemble, layout):
    """Return the ensemble with the rows, columns, units and times of a layout, and the parts for its files."""
    data = ensemble.isel(latitude=slice(None, None, -1 if layout["south_first"] else 1))
    data = data.roll(longitude=layout["turn"], roll_coords=True)
    data["longitude"] = (data.longitude - layout["west"]) % 360 + layout["west"]
    data["level"] = data.level * (100.0 if layout["pascal"] else 1.0)
    for name in ("2t", "t"):
        data[name] = data[name] - (273.15 if layout["celsius"] else 0.0)
    valid = data.start + data.lead * np.timedelta64(1, "h")
    data = data.assign_coords(valid=valid if data.sizes["start"] > 1 else valid.isel(start=0, drop=True))
    since = np.datetime64(layout["since"].rstrip("Z").replace(" ", "T"), "ns")
    for name in ("start", "valid"):
        data[name] = (data[name] - since) / np.timedelta64(SECONDS[layout["unit"]], "s")
    data["lead"] = data.lead * 3600 / SECONDS[layout["lead_unit"]]
    split = layout["split"]
    if split == "variable":
        return [data[[name]] for name in data]
    return [data.isel({split: k}) for k in range(data.sizes[split])] if split else [data]


def write(path, data, layout):
    """Write a part of an ensemble with the names and attributes of a layout."""
    # With a single lead time, only a standard name shows whether `time` is the start or the valid time.
    described = layout["standard_names"] or (layout["split"] == "lead" and layout["names"]["start"] == "time")
    data = data.drop_vars(("lead" if described else ()) if layout["valid"] else "valid")
    clock = {"units": f"{layout['unit']} since {layout['since']}", "calendar": layout["calendar"]}
    temperature = "degC" if layout["celsius"] else "K"
    attributes = {
        "start": clock, "valid": clock, "lead": {"units": layout["lead_unit"]}, "number": {},
        "level": {"units": "Pa" if layout["pascal"] else "hPa"}, "latitude": {"units": "degrees_north"},
        "longitude": {"units": "degrees_east"}, "2t": {"units": temperature}, "t": {"units": temperature},
        "z": {"units": "m2 s-2"},
    }  # fmt: skip
    for name in data.variables:
        own = {"standard_name": STANDARD_NAMES[name]} if described and name in STANDARD_NAMES else {}
        data[name].attrs = attributes[name] | own
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 5.0, "_FillValue": -32768}
    for name in data:
        data[name].encoding = packing if layout["packed"] else {"dtype": "f4"}
    data = data.transpose(*layout["order"], missing_dims="ignore")
    # Coordinates without a dimension of their own are listed in the attribute `coordinates`, or not.
    data = data if layout["listed"] else data.reset_coords()
    present = {*data.variables, *data.dims}
    names = {role: name for role, name in layout["names"].items() if role in present}
    data.rename(names).to_netcdf(path, format=layout["format"])


@settings(max_examples=20)
@given(ensembles(), LAYOUTS)
def test_every_layout_holds_the_same_numbers(tmp_path_factory, ensemble, layout):
    folder, paths = tmp_path_factory.mktemp("layout"), []
    for part in laid_out(ensemble, layout):
        paths.append(folder / f"part{len(paths):03}.nc")
        write(paths[-1], part, layout)
    tolerance = 0.006 if layout["packed"] else 1e-3
    dataset = open_ensemble(paths, chunks=None)
    axes = {"init_time": "start", "lead_time": "lead", **{name: name for name in AXES[2:]}}
    for ours, role in axes.items():
        np.testing.assert_array_equal(dataset[ours].values, ensemble[role].values)
    for name in ensemble:
        assert [axes[dimension] for dimension in dataset[name].dims] == [*ensemble[name].dims]
        np.testing.assert_allclose(dataset[name].values, ensemble[name].values, rtol=0, atol=tolerance)
    variables = [Variable("2t"), *(Variable(name, level) for name in ("t", "z") for level in (850, 500))]
    fields = ensemble_fields(paths, variables, ensemble.lead.values.tolist())
    out = np.empty((ensemble.sizes["number"], len(variables), 3, 6))
    for i, j in np.ndindex(ensemble.sizes["start"], ensemble.sizes["lead"]):
        fields.read(fields.cells[i, j], out)
        for c, variable in enumerate(variables):
            at = {"level": variable.level} if variable.level else {}
            expected = ensemble[variable.name].sel(at).values[i, j]
            np.testing.assert_allclose(out[:, c], expected, rtol=0, atol=tolerance)
