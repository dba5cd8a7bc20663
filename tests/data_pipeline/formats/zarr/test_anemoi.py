"""Datasets of anemoi: values, names, levels, times and grids are those that the store's attributes state."""

import numpy as np
import pytest
import zarr

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import analysis_fields, grid_of_files, open_analysis, open_ensemble
from data_pipeline.formats.registry import ZarrFormat
from data_pipeline.formats.zarr import zarr_catalog as reader
from data_pipeline.formats.zarr.array import ZarrArray
from data_pipeline.grids.points import Points
from data_pipeline.task import Variable

DATES = np.array(["2020-01-01T00", "2020-01-01T06", "2020-01-01T12"], "datetime64[s]")
ABOUT = {
    "2t": {"mars": {"param": "2t", "levtype": "sfc"}},
    "t_850": {"mars": {"param": "t", "levtype": "pl", "levelist": 850}, "units": "K"},
    "t_500": {"mars": {"param": "t", "levtype": "pl", "levelist": 500}, "units": "K"},
    "tp": {"mars": {"param": "tp", "levtype": "sfc"}, "units": "m", "process": "accumulation", "period": ["0h", "6h"]},
    "cos_latitude": {"computed_forcing": True, "constant_in_time": True},
}


def positions(rows=(60.0, 20.0, -20.0, -60.0), columns=6):
    north, east = np.meshgrid(rows, np.arange(columns) * 360 / columns, indexing="ij")
    return north.ravel(), east.ravel()


def write(path, cells=None, steps=None, members=1, about=ABOUT, zarr_format=2, chunks=None, **attributes):
    """Write a dataset as anemoi-datasets does; return its values."""
    north, east = cells or positions()
    shape = (len(DATES), len(about), members, *(() if steps is None else (len(steps),)), len(north))
    values = 200 + np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 64
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    array = group.create_array("data", shape=shape, dtype="f4", chunks=chunks or (1, *shape[1:]), fill_value=np.nan)
    array[...] = values
    arrays = {"latitudes": north, "longitudes": east, "mean": values.mean((0, 2, *range(3, values.ndim)))}
    arrays |= {"dates": DATES} if steps is None else {"base_dates": DATES, "steps": steps}
    for name, content in arrays.items():
        group.create_array(name, data=np.asarray(content))
    group.attrs.update({"variables": [*about], "variables_metadata": about, "missing_dates": [], **attributes})
    return values


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_analyses_on_a_grid(tmp_path, zarr_format):
    """South first, so rows are turned; amounts have the interval of their period."""
    cells = positions(rows=(-60.0, -20.0, 20.0, 60.0))
    values = write(tmp_path / "a.zarr", cells, field_shape=[4, 6], zarr_format=zarr_format)[:, :, 0].reshape(3, 5, 4, 6)
    found = open_analysis(tmp_path / "a.zarr", ["2t", "t@850", "t@500", "tp"])
    assert found.latitude.values.tolist() == [60, 20, -20, -60]
    np.testing.assert_array_equal(found["2t"].values, values[:, 0, ::-1])
    np.testing.assert_array_equal(found["t"].sel(level=850).values, values[:, 1, ::-1])
    np.testing.assert_array_equal(found["t"].sel(level=500).values, values[:, 2, ::-1])
    np.testing.assert_array_equal(found["tp"].values, values[:, 3, ::-1])
    assert found.time.values.astype("datetime64[s]").tolist() == DATES.tolist()
    fields = analysis_fields(tmp_path / "a.zarr", [Variable("tp")])
    assert {*fields.meanings[0].intervals} == {360}
    fields.read(fields.cells[1, 0], out := np.empty((1, 1, 2, 3)), (slice(1, 3), np.array([5, 0, 1])))
    np.testing.assert_array_equal(out[0, 0], values[1, 3, ::-1][1:3][:, [5, 0, 1]])
    assert "2t tp cos_latitude; t at 850 500 hPa" in ZarrFormat().summarize([tmp_path / "a.zarr"], None)


def test_model_levels_are_part_of_the_name(tmp_path):
    about = {f"t_{level}": {"mars": {"param": "t", "levtype": "ml", "levelist": level}} for level in (136, 137)}
    values = write(tmp_path / "a.zarr", about=about, field_shape=[4, 6])
    found = open_analysis(tmp_path / "a.zarr", ["t_ml137"])["t_ml137"]
    np.testing.assert_array_equal(found.values, values[:, 1, 0].reshape(3, 4, 6))
    assert found.attrs["level_of_fields"] == "hybrid"


def test_a_chunk_of_many_variables_is_decoded_once(tmp_path, monkeypatch):
    values = write(tmp_path / "a.zarr", field_shape=[4, 6])
    monkeypatch.setattr(reader, "_kept", reader.KeptRegions())
    read, original = [], ZarrArray.read
    fields = analysis_fields(tmp_path / "a.zarr", [Variable.parse(name) for name in ("2t", "t@850", "t@500")])
    monkeypatch.setattr(ZarrArray, "read", lambda *arguments: read.append(1) or original(*arguments))
    fields.read(fields.cells[1, 0], out := np.empty((1, 3, 4, 6)))
    np.testing.assert_array_equal(out[0], values[1, :3, 0].reshape(3, 4, 6))
    assert len(read) == 1


def test_forecasts_of_members(tmp_path):
    steps = np.array([6, 12], "timedelta64[h]").astype("timedelta64[s]")
    about = {name: {**one, "mars": {**one.get("mars", {}), "number": [0, 5]}} for name, one in ABOUT.items()}
    values = write(tmp_path / "a.zarr", None, steps, 2, about, chunks=(1, 5, 1, 1, 24), field_shape=[4, 6])
    found = open_ensemble(tmp_path / "a.zarr", ["t@850", "2t"])
    assert found.number.values.tolist() == [0, 5]
    assert found.lead_time.values.tolist() == [6, 12]
    expected = values.reshape(3, 5, 2, 2, 4, 6).swapaxes(2, 3)
    np.testing.assert_array_equal(found["t"].squeeze("level").values, expected[:, 1])
    np.testing.assert_array_equal(found["2t"].values, expected[:, 0])


def test_points_and_reduced_grids(tmp_path):
    values = write(
        tmp_path / "points.zarr", (np.array([50.0, 51.5, 47.0]), np.array([8.0, 9.0, 11.0])), field_shape=[3]
    )
    found = open_analysis(tmp_path / "points.zarr", ["2t", "t@500"])
    np.testing.assert_array_equal(found["2t"].values.squeeze(), values[:, 0, 0])
    counts = (20, 24, 24, 20)
    rows = np.repeat([59.4, 19.9, -19.9, -59.4], counts), np.concatenate([np.arange(n) * 360 / n for n in counts])
    values = write(tmp_path / "reduced.zarr", rows, field_shape=[88])
    grid = grid_of_files(tmp_path / "reduced.zarr")
    assert (grid.name, grid.counts) == ("O2", counts)
    catalog = reader.ZarrCatalog.gather([tmp_path / "reduced.zarr"], [Variable("2t")], None)
    catalog.reader.read(np.array([2]), out := np.empty((1, 1, 88)), (slice(None), slice(None)))
    np.testing.assert_array_equal(out.ravel(), values[2, 0, 0])
    write(tmp_path / "turned.zarr", (rows[0], rows[1] + 3), field_shape=[88])
    assert isinstance(grid_of_files(tmp_path / "turned.zarr"), Points)


def test_missing_dates_and_lost_chunks(tmp_path):
    values = write(tmp_path / "a.zarr", field_shape=[4, 6], missing_dates=["2020-01-01T06:00:00"])
    with pytest.warns(UserWarning, match=r"1 of 3 fields were never written and are missing, .* 2020-01-01T06:00"):
        found = open_analysis(tmp_path / "a.zarr", ["2t"])
    np.testing.assert_array_equal(found["2t"].values, values[[0, 2], 0, 0].reshape(2, 4, 6))
    (tmp_path / "a.zarr/data/0.0.0.0").unlink()
    assert open_analysis(tmp_path / "a.zarr", ["2t"]).time.values.tolist() == DATES[[2]].astype("M8[ns]").tolist()


def test_names_without_metadata_and_what_is_refused(tmp_path):
    path = tmp_path / "a.zarr"
    values = write(path, about={name: {} for name in ("t_850", "skt", "x")}, field_shape=[4, 6])
    with pytest.raises(InputError, match=r"\(skt\) has no units, GRIB has skt in K; state the units"):
        open_analysis(path, ["skt"])
    names = {"x": "2t in degC", "t_850": "t@850 in K"}
    found = open_analysis(path, ["2t", "t@850"], names=names)
    np.testing.assert_allclose(found["2t"].values, values[:, 2, 0].reshape(3, 4, 6) + 273.15, rtol=1e-6)
    with pytest.raises(InputError, match="valid times but no start"):
        open_ensemble(path, ["2t"], names=names)
    write(path, about={"x": {"process": "variance"}}, field_shape=[4, 6])
    with pytest.raises(InputError, match=r"a.zarr \(x\): its process is variance, which is not read"):
        open_analysis(path)
    zarr.open_group(path, mode="a").attrs["variables"] = ["x", "y"]
    with pytest.raises(
        InputError, match=r"an unknown layout: its data have the shape \(3, 1, 1, 24\), with 2 variables"
    ):
        open_analysis(path)
