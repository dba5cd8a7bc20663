"""Datasets of xarray, objects that become one, and trees are opened like the files that hold the same fields."""

import dask
import deepweather as dw
import numpy as np
import pytest
import xarray as xr
from forecast_files import write_forecasts
from grib_parts import GRID

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import open_analysis, open_ensemble, open_static
from data_pipeline.regridding.target import TargetGrid

STARTS = np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]")
MEMBERS = {"number": ("number", [1, 2, 3], {"standard_name": "realization"})}


class FieldList:
    """What a field list of earthkit-data returns: dimensions of size 1 only without squeeze, types of levels."""

    def __init__(self, dataset, level_type="pl"):
        self.dataset, self.calls = dataset.expand_dims(level_type=[level_type]), []

    def to_xarray(self, squeeze=True):
        self.calls.append(squeeze)
        return self.dataset.squeeze(drop=True) if squeeze else self.dataset


def fields(levels=(500, 850)):
    """Forecasts as earthkit-data names their dimensions, south first."""
    axes = {"number": [0, 1], "forecast_reference_time": STARTS, "step": np.array([24, 48], "timedelta64[h]")}
    axes |= {"level": list(levels), "latitude": [-30.0, 0.0, 30.0], "longitude": [0.0, 90.0, 180.0, 270.0]}
    shape = [len(axis) for axis in axes.values()]
    values = 250 + np.arange(np.prod(shape)).reshape(shape) / 8
    return xr.Dataset({"t": (tuple(axes), values, {"units": "K"})}, {name: (name, axis) for name, axis in axes.items()})


@pytest.mark.parametrize("chunked", [False, True])
def test_a_dataset_is_opened_like_its_file(tmp_path, chunked):
    """Units, order of rows, names, selection and windows are those of the file."""
    values = 10 + np.random.default_rng(0).standard_normal((2, 2, 3, *GRID.shape))
    variables = {"t2m": (("number",), values, {"units": "degC"}), "msl": (("number",), 1000 + values, {"units": "hPa"})}
    path = write_forecasts(tmp_path / "a.nc", STARTS, [24, 48], GRID, variables, MEMBERS)
    with xr.open_dataset(path, decode_timedelta=True) as given:
        given = given.isel(latitude=slice(None, None, -1))
        given = given.chunk(init_time=1) if chunked else given.load()
        expected, found = open_ensemble(path, ["2t"], [48]), open_ensemble(given, ["2t"], [48])
        xr.testing.assert_identical(found.load(), expected.load())
        target = TargetGrid(GRID, "bilinear")
        xr.testing.assert_identical(open_ensemble(given, target=target), open_ensemble(path, target=target))
        window = {"latitude": slice(2, 5), "longitude": [3, 1], "number": [2, 0]}
        part = open_ensemble(given, chunks=None).isel(window)
        xr.testing.assert_identical(part.load(), open_ensemble(path, chunks=None).isel(window).load())


def test_chunks_of_two_datasets_have_different_names():
    """Otherwise dask would take values of the one for those of the other."""
    one, other = open_ensemble(fields()), open_ensemble(fields() + 1)
    assert float(dask.compute(other["t"] - one["t"])[0].mean()) == 1
    assert one["t"].data.name == open_ensemble(fields())["t"].data.name


def test_a_field_list_becomes_a_dataset_once():
    given = FieldList(fields())
    found = open_ensemble(given, ["t@850"])
    assert given.calls == [False]
    expected = fields()["t"].sel(level=850).isel(latitude=slice(None, None, -1))
    expected = expected.transpose("forecast_reference_time", "step", "number", ...)
    np.testing.assert_array_equal(found["t"].squeeze("level").values, expected.values.astype("f4"))
    assert found.lead_time.values.tolist() == [24, 48]
    single = FieldList(fields([850]).isel(forecast_reference_time=[0], step=[0]))
    assert open_ensemble(single).sizes["level"] == open_ensemble(single).sizes["init_time"] == 1


def test_levels_of_other_types_are_no_pressures():
    found = open_ensemble(FieldList(fields([137]), "ml"))
    assert found["t_ml137"].attrs["level_of_fields"] == "hybrid"
    assert "level" not in found["t_ml137"].dims
    surface = FieldList(fields([0]).rename(t="2t"), "sfc")
    assert open_ensemble(surface)["2t"].dims[:3] == ("init_time", "lead_time", "number")
    with pytest.raises(InputError, match=r"the ensemble \(FieldList\) has 2 levels of the type ml; select"):
        open_ensemble(FieldList(fields([136, 137]), "ml"))


def test_groups_of_a_tree_are_parts():
    ensemble = fields()
    analysis = fields()["t"].isel(number=0, step=0).rename(forecast_reference_time="time").drop_vars(["step", "number"])
    static = xr.Dataset({"lsm": (("latitude", "longitude"), np.eye(3, 4), {"units": "1"})})
    static = static.assign_coords(ensemble[["latitude", "longitude"]].coords)
    tree = xr.DataTree.from_dict({"ensemble": ensemble, "analysis": analysis.to_dataset(name="t")})
    xr.testing.assert_identical(open_ensemble(tree), open_ensemble(ensemble))
    assert open_analysis(tree)["t"].sizes == {"time": 2, "level": 2, "latitude": 3, "longitude": 4}
    with pytest.raises(InputError, match=r"\(DataTree\) lacks the group static; its groups are ensemble, analysis"):
        open_static(tree)
    tree["static"] = xr.DataTree(static)
    np.testing.assert_array_equal(dw.open_static(tree)["lsm"].values, np.eye(3, 4)[::-1])


def test_what_is_no_dataset_is_refused():
    with pytest.raises(InputError, match=r"the ensemble \(DataArray\) is one array; name its variable"):
        open_ensemble(fields()["t"])
    with pytest.raises(InputError, match=r"the ensemble \(Dataset\) \(t\) is in 'parsecs', GRIB has t in K"):
        open_ensemble(fields().assign(t=fields()["t"].assign_attrs(units="parsecs"))).load()
    with pytest.raises(InputError, match=r"the analysis \(Dataset\) has no variable on latitudes and longitudes"):
        open_analysis(fields().isel(latitude=0, longitude=0, drop=True))

    class Uneven(FieldList):
        def to_xarray(self, squeeze=True):
            raise ValueError("inconsistent dimension")

    with pytest.raises(InputError, match=r"does not become one dataset \(inconsistent dimension\); select fields"):
        open_ensemble(Uneven(fields()))
