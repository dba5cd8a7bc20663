"""Every legal layout of an ensemble gives the same values at the same coordinates."""

import itertools
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.formats.open import ensemble_fields, open_ensemble
from data_pipeline.task import Variable

EPOCH = np.datetime64("1970-01-01", "s")
LEVELS = (850, 500)
NAMES = {
    "start": ("time", "init_time", "forecast_reference_time", "S"),
    "lead": ("step", "lead_time", "forecast_period", "L", "prediction_timedelta"),
    "number": ("number", "realization", "member", "ens", "M"),
    "level": ("level", "isobaricInhPa", "plev", "pressure_level"),
    "latitude": ("latitude", "lat", "Y"),
    "longitude": ("longitude", "lon", "X"),
}
STANDARD_NAMES = {
    "start": "forecast_reference_time", "lead": "forecast_period", "number": "realization", "level": "air_pressure",
    "latitude": "latitude", "longitude": "longitude", "valid": "time",
}  # fmt: skip
SPELLINGS = {"2t": ("t2m", "T2M", "2m_temperature"), "t": ("t", "T", "temperature"), "z": ("z", "Z", "geopotential")}
SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}


@dataclass(frozen=True)
class Layout:
    """How the files of an ensemble are laid out."""

    names: dict
    spelled: dict
    order: tuple
    split: str | None
    times: str
    unit: str
    lead_unit: str
    since: str
    calendar: str
    file_format: str
    standard_names: bool
    south_first: bool
    first_column: int
    west: int
    celsius: bool
    pascal: bool
    packed: bool


@st.composite
def layouts(draw):
    names = {role: draw(st.sampled_from(choices)) for role, choices in NAMES.items()}
    split = draw(st.sampled_from([None, "start", "lead", "number", "variable"]))
    return Layout(
        names=names,
        spelled={name: draw(st.sampled_from(choices)) for name, choices in SPELLINGS.items()},
        order=tuple(draw(st.permutations(["start", "lead", "number", "level", "latitude", "longitude"]))),
        split=split,
        times=draw(st.sampled_from(["start and lead", "start and valid"])),
        unit=draw(st.sampled_from(list(SECONDS))),
        lead_unit=draw(st.sampled_from(list(SECONDS))),
        since=draw(st.sampled_from(["1900-01-01", "1970-01-01 00:00:00", "2016-02-29T12:00:00Z"])),
        calendar=draw(st.sampled_from(["standard", "gregorian", "proleptic_gregorian"])),
        file_format=draw(st.sampled_from(["NETCDF4", "NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF4_CLASSIC"])),
        # With a single lead time, only a standard name shows whether `time` is the start or the valid time.
        standard_names=draw(st.booleans()) or (split == "lead" and names["start"] == "time"),
        south_first=draw(st.booleans()),
        first_column=draw(st.integers(0, 5)),
        west=draw(st.sampled_from([0, -180, -360])),
        celsius=draw(st.booleans()),
        pascal=draw(st.booleans()),
        packed=draw(st.booleans()),
    )


@st.composite
def ensembles(draw):
    """Draw the coordinates of an ensemble."""
    starts = draw(st.lists(st.integers(0, 400), min_size=1, max_size=3, unique=True))
    return {
        "start": np.sort(np.datetime64("2016-02-20", "s") + np.array(starts) * np.timedelta64(12, "h")),
        "lead": np.sort(draw(st.lists(st.integers(0, 10), min_size=1, max_size=3, unique=True))) * 24,
        "number": np.sort(draw(st.lists(st.integers(0, 50), min_size=1, max_size=3, unique=True))),
        "latitude": np.array([50.0, 40.0, 20.0]),
        "longitude": np.arange(6) * 60.0,
    }


def value(variable, start, lead, number):
    """Return values (latitude, longitude) that no other field has, in the units of GRIB."""
    seed = [*variable.name.encode(), variable.level, int((start - EPOCH) / np.timedelta64(1, "h")), lead, number]
    return 280 + 10 * np.random.default_rng(seed).standard_normal((3, 6))


def write_ensemble(folder, plain, ensemble, layout):
    """Write the files of an ensemble in a layout; return their paths."""
    axes = {role: list(values) for role, values in ensemble.items()} | {"level": list(LEVELS)}
    whole = {role: [axes[role]] for role in ("start", "lead", "number")} | {"variable": [["2t", "t", "z"]]}
    if layout.split:
        whole[layout.split] = [[one] for one in whole[layout.split][0]]
    paths = []
    for parts in itertools.product(*whole.values()):
        chosen = dict(zip(whole, parts, strict=True))
        path = folder / f"part{len(paths):03}.nc"
        write_part(path, plain, {**axes, **chosen}, layout)
        paths.append(path)
    return paths


def write_part(path, plain, axes, layout):
    """Write one file; the coordinate that differs between files is a scalar."""
    scalar = {role for role in ("start", "lead", "number") if role == layout.split}
    many = layout.times == "start and valid" and len(axes["start"]) > 1
    axes_of_valid = ("start", "lead") if many else ("lead",)

    def describe(role, **attributes):
        return {**({"standard_name": STANDARD_NAMES[role]} if layout.standard_names else {}), **attributes}

    def dims(*roles):
        return tuple(layout.names[role] for role in roles if role not in scalar)

    factor, since = SECONDS[layout.unit], np.datetime64(layout.since.rstrip("Z").replace(" ", "T"), "s")
    clock = {"units": f"{layout.unit} since {layout.since}", "calendar": layout.calendar}
    starts = np.array(axes["start"], "datetime64[s]")
    leads = np.array(axes["lead"]) * np.timedelta64(1, "h")

    def encode_times(times):
        return (times - since) / np.timedelta64(1, "s") / factor

    lat = np.array(axes["latitude"])
    rows = slice(None, None, -1) if layout.south_first else slice(None)
    columns = np.roll(np.arange(6), -layout.first_column)
    west = (columns * 60.0 - layout.west) % 360 + layout.west
    shown = {
        "start": (("start",), encode_times(starts), describe("start", **clock)),
        "number": (("number",), np.array(axes["number"], np.int32), describe("number")),
        "latitude": (("latitude",), lat[rows], describe("latitude", units="degrees_north")),
        "longitude": (("longitude",), west, describe("longitude", units="degrees_east")),
        "level": (
            ("level",), np.array(axes["level"]) * (100.0 if layout.pascal else 1.0),
            describe("level", units="Pa" if layout.pascal else "hPa"),
        ),
    }  # fmt: skip
    if layout.times == "start and lead" or not layout.standard_names:
        length = leads / np.timedelta64(1, "s") / SECONDS[layout.lead_unit]
        shown["lead"] = (("lead",), length, describe("lead", units=layout.lead_unit))
        if layout.times != "start and lead":
            shown["valid"] = valid_times(starts, leads, axes_of_valid, encode_times, describe, clock)
    else:
        shown["valid"] = valid_times(starts, leads, axes_of_valid, encode_times, describe, clock)
    coordinates = {}
    for role, (roles, values, attributes) in shown.items():
        name = "valid_time" if role == "valid" else layout.names[role]
        squeezed = values.reshape([size for size, own in zip(values.shape, roles, strict=True) if own not in scalar])
        coordinates[name] = (dims(*roles), squeezed, attributes)
    variables = {}
    for name in axes["variable"]:
        order = [role for role in layout.order if role not in scalar and (role != "level" or name != "2t")]
        variables[layout.spelled[name]] = (dims(*order), *field(name, axes, order, rows, columns, layout))
    plain.write(path, coordinates, variables, layout.file_format)


def valid_times(starts, leads, roles, encode_times, describe, clock):
    """Return valid times along starts and lead times, or along the lead times of a single start."""
    times = starts[:, None] + leads
    return roles, encode_times(times if len(roles) == 2 else times[0]), describe("valid", **clock)


def field(name, axes, order, rows, columns, layout):
    """Return values with the order of dimensions of the layout, and their attributes."""
    outer = [role for role in ("start", "lead", "number", "level") if role in order or role != "level"]
    shape = [len(axes[role]) for role in outer if role != "level" or name != "2t"]
    data = np.empty((*shape, 3, 6))
    for position in np.ndindex(*shape):
        at = {role: axes[role][k] for role, k in zip(outer, position, strict=False)}
        variable = Variable(name, at["level"] if name != "2t" else 0)
        data[position] = value(variable, at["start"], int(at["lead"]), int(at["number"]))[rows][:, columns]
    roles = [*(role for role in outer if role != "level" or name != "2t"), "latitude", "longitude"]
    data = data.reshape([size for size, role in zip(data.shape, roles, strict=True) if role in order])
    data = data.transpose([[role for role in roles if role in order].index(role) for role in order])
    units = "m2 s-2" if name == "z" else "K"
    if layout.celsius and name != "z":
        data, units = data - 273.15, "degC"
    if layout.packed:
        return np.round((data - 5) / 0.01).astype(np.int16), {"units": units, "scale_factor": 0.01, "add_offset": 5.0}
    return data.astype(np.float32), {"units": units}


@given(ensembles(), layouts())
def test_every_layout_holds_the_same_numbers(tmp_path_factory, plain, ensemble, layout):
    folder = tmp_path_factory.mktemp("layout")
    paths = write_ensemble(folder, plain, ensemble, layout)
    tolerance = 0.006 if layout.packed else 1e-3
    dataset = open_ensemble(paths, chunks=None)
    assert dataset.t.dims == ("init_time", "lead_time", "number", "level", "latitude", "longitude")
    assert dataset["2t"].dims == ("init_time", "lead_time", "number", "latitude", "longitude")
    for ours, role in {"init_time": "start", "lead_time": "lead", "number": "number"}.items():
        np.testing.assert_array_equal(dataset[ours].values, ensemble[role])
    assert dataset.level.values.tolist() == list(LEVELS)
    np.testing.assert_array_equal(dataset.latitude, ensemble["latitude"])
    np.testing.assert_array_equal(dataset.longitude, ensemble["longitude"])
    loaded = dataset.load()
    variables = [Variable("2t"), *(Variable(name, level) for name in ("t", "z") for level in LEVELS)]
    fields = ensemble_fields(paths, variables, ensemble["lead"].tolist())
    out = np.empty((len(ensemble["number"]), len(variables), 3, 6))
    for i, start in enumerate(ensemble["start"]):
        for j, lead in enumerate(ensemble["lead"]):
            fields.read(i, j, out)
            for c, variable in enumerate(variables):
                at = {"level": variable.level} if variable.level else {}
                shown = loaded[variable.name].sel(init_time=start, lead_time=lead, **at)
                for k, number in enumerate(ensemble["number"]):
                    expected = value(variable, start, int(lead), int(number))
                    np.testing.assert_allclose(shown[k], expected, rtol=0, atol=tolerance)
                    np.testing.assert_allclose(out[k, c], expected, rtol=0, atol=tolerance)
