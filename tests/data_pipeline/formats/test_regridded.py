"""Fields of files read on another grid: which points, which rows, which members, and what is said about it."""

import numpy as np
import pytest
from weather_files import weather, write_grib

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say_once
from data_pipeline.dataset import ForecastDataset
from data_pipeline.formats.open import ensemble_fields, open_analysis, open_ensemble, open_static
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.regridding.target import TargetGrid
from data_pipeline.regridding.weights import weights_between
from data_pipeline.task import Task, Variable

FINE, COARSE = Grid.regular(13, 24), Grid.regular(7, 12)
TASK = Task(name="toy", inputs=["10u", "2t"], targets=["2t"], lead_times=[24])
WANTED = [Variable("10u"), Variable("2t")]
PACKING = 1e-3


@pytest.fixture(autouse=True)
def _unsaid():
    say_once.cache_clear()


def write(path, part, grid):
    """Write a part with fields of 10u and 2t; return their values, (member, variable, H, W)."""
    variables = ("10u", "2t")
    data = weather((24,), (1, 2, 3), (), np.array(["2020-01-01"], "M8[ns]"), variables, grid)
    data = data["ensemble" if part == "ensemble" else "analysis"]
    write_grib(path, part, data, bitsPerValue=24, dataTime=0)
    return np.stack([data[name].values.reshape(-1, *grid.shape) for name in variables], 1)


@pytest.fixture
def archive(tmp_path):
    """The paths of an archive: a coarse ensemble, finer truth and static fields."""
    ensemble = write(tmp_path / "ensemble", "ensemble", COARSE)
    truth = write(tmp_path / "analysis", "analysis", FINE)
    static = write(tmp_path / "static", "analysis", FINE)
    parts = {"ensemble": "ensemble", "analysis": "analysis", "static_fields": "static"}
    return {part: [str(tmp_path / name)] for part, name in parts.items()}, ensemble, truth, static


def test_finer_truth_and_static_fields_are_read_at_the_points_of_the_ensemble(archive, capsys):
    paths, _, truth, static = archive
    source = Archive(**paths)
    sample = ForecastDataset(source, TASK, [2020])[0]
    np.testing.assert_allclose(sample.target.numpy()[0], truth[0, 1, ::2, ::2], atol=PACKING)
    tile = ForecastDataset(source, TASK, [2020], rows=slice(2, 5), columns=slice(3, 9))[0]
    assert tile.target.equal(sample.target[:, 2:5, 3:9])
    np.testing.assert_allclose(source.static["10u"].values, static[0, 0, ::2, ::2], atol=PACKING)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "analysis" in line] == [
        f"{paths['analysis'][0]}: the grid of {FINE} is read at the points of {COARSE}"
    ]


def test_truth_without_the_points_of_the_ensemble_is_refused_with_the_option(archive, tmp_path):
    paths, *_ = archive
    write(tmp_path / "analysis", "analysis", Grid.regular(10, 24))
    with pytest.raises(InputError, match=r"7 x 12 points.* 10 x 24 points.*set data\.archive\.grid=ensemble"):
        ForecastDataset(Archive(**paths), TASK, [2020])


@pytest.mark.parametrize("other", [Grid.regular(10, 24), Points((45.0,), (10.0,))])
@pytest.mark.parametrize("part", ["ensemble", "analysis", "static_fields"])
def test_a_target_whose_points_a_file_lacks_is_refused(archive, part, other):
    paths, *_ = archive
    opened = {"ensemble": open_ensemble, "analysis": open_analysis, "static_fields": open_static}[part]
    with pytest.raises(InputError, match=rf"{part.partition('_')[0]} is on .* lacks points of the target.*'bilinear'"):
        opened(paths[part], target=TargetGrid(other))
    assert opened(paths[part], target=TargetGrid(COARSE)).sizes["latitude"] == 7
    if not isinstance(other, Points):
        assert opened(paths[part], target=TargetGrid(other, "bilinear")).sizes["latitude"] == 10


@pytest.mark.parametrize("method", ["conservative", "bilinear"])
@pytest.mark.parametrize(("option", "grid"), [("ensemble", COARSE), ("analysis", FINE), (10, Grid.regular(19, 36))])
def test_all_parts_are_brought_to_the_grid_of_the_option(archive, option, grid, method, capsys):
    paths, ensemble, truth, static = archive
    source = Archive(**paths, grid=option, regridding=method)
    sample = ForecastDataset(source, TASK, [2020])[0]
    rows = np.arange(grid.shape[0])

    def wanted(values, origin, parity):
        if origin.matches(grid):
            return values
        return weights_between(origin, grid, method).apply(values.ravel(), rows, parity)

    for number in range(3):
        for channel, parity in ((0, -1), (1, 1)):
            np.testing.assert_allclose(
                sample.ensemble[number, channel], wanted(ensemble[number, channel], COARSE, parity), atol=PACKING
            )
    np.testing.assert_allclose(sample.target[0], wanted(truth[0, 1], FINE, 1), atol=PACKING)
    np.testing.assert_allclose(source.static["2t"].values, wanted(static[0, 1], FINE, 1), atol=PACKING)
    told = [line for line in capsys.readouterr().out.splitlines() if f"to {grid} by {method} weights" in line]
    assert len(told) == (option != "ensemble") + 2 * (option != "analysis")


def test_windows_members_and_missing_fields(tmp_path):
    """A part of the rows is the same part of the whole field; a missing member is NaN."""
    write(tmp_path / "ensemble", "ensemble", FINE)
    source, target = tmp_path / "ensemble", TargetGrid(COARSE, "bilinear")
    fields = ensemble_fields(source, WANTED, [24], target=target)
    whole = np.empty((3, 2, *COARSE.shape), np.float32)
    fields.read(fields.cells[0, 0], whole)
    part = np.empty((2, 2, 2, COARSE.shape[1]), np.float32)
    fields.read(fields.cells[0, 0, [2, 0]], part, (slice(3, 5), slice(None)))
    np.testing.assert_array_equal(part, whole[[2, 0], :, 3:5])
    cells = np.array([[0, -1], [5, 2]])
    out = np.empty((2, 2, *COARSE.shape), np.float32)
    fields.reader.read(cells, out, (slice(None), slice(None)))
    assert np.isnan(out[0, 1]).all()
    np.testing.assert_array_equal(out[[0, 1, 1], [0, 0, 1]], whole.swapaxes(0, 1).reshape(6, *COARSE.shape)[[0, 5, 2]])
    row = open_ensemble(source, WANTED, [24], target=target, chunks=None)["2t"][0, 0, :, 4, 3:5].values
    np.testing.assert_array_equal(row, whole[:, 1, 4, 3:5])


def test_a_store_and_its_archive_differ_by_the_grid(archive):
    paths, *_ = archive
    prints = {Archive(**paths, grid=grid).fingerprint for grid in (None, "ensemble", "analysis", 10)}
    prints.add(Archive(**paths, grid=10, regridding="bilinear").fingerprint)
    assert len(prints) == 5
    assert Archive(**paths, regridding="bilinear").fingerprint in prints
    for options in ({"grid": "mine"}, {"grid": 10, "regridding": "cubic"}, {"regridding": None}):
        with pytest.raises(InputError, match=r"data\.archive\.(grid|regridding) must be"):
            Archive(**paths, **options)
