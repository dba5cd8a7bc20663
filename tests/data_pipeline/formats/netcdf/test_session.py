"""A user's own NetCDF ensemble, from `prepare` to a corrector."""

import netCDF4
import numpy as np


def write(path, axes, name, values, units):
    """Write one variable along `axes`: name to values and attributes."""
    with netCDF4.Dataset(path, "w") as file:
        for axis, (points, attributes) in axes.items():
            file.createDimension(axis, len(points))
            file.createVariable(axis, "f8", (axis,))[:] = points
            file[axis].setncatts(attributes)
        file.createVariable(name, "f4", tuple(axes))[...] = values
        file[name].units = units


def test_prepare_and_train(tmp_path, command):
    """One file per year in °C, analyses in K on the same grid in another order; the ensemble is 1.5 K too warm."""
    random = np.random.default_rng(0)
    lat, lon = np.linspace(60, -60, 5), np.arange(8) * 45.0
    units_of_time = {"units": "hours since 2000-01-01"}
    places = {"lat": (lat, {"units": "degrees_north"}), "lon": (lon, {"units": "degrees_east"})}
    valid, truth = [], []
    for year in range(3):
        start = year * 8784 + np.arange(20) * 360
        field = 15 + 5 * random.standard_normal((20, 1, 1, 5, 8))
        members = field + 1.5 + random.standard_normal((20, 1, 4, 5, 8))
        outer = {"init_time": (start, units_of_time), "lead": ([24], {"units": "hours"}), "member": (range(4), {})}
        write(tmp_path / f"ens_{year}.nc", {**outer, **places}, "T2", members, "degC")
        valid += (start + 24).tolist()
        truth += list(field[:, 0, 0] + 0.5 * random.standard_normal((20, 5, 8)))
    flipped = {
        "time": (valid, units_of_time),
        "lat": (lat[::-1], places["lat"][1]),
        "lon": (lon - 180, places["lon"][1]),
    }
    write(tmp_path / "era5.nc", flipped, "T2M", np.roll(np.array(truth), 4, axis=-1)[:, ::-1] + 273.15, "K")
    data = (
        "data=netcdf", "data.archive.ensemble=[ens_*.nc]", "data.archive.analysis=[era5.nc]",
        "data.archive.variable_names={T2: 2t}", "data.split.train=[2000,2000]", "data.split.val=[2001,2001]",
        "data.split.test=[2002,2002]",
    )  # fmt: skip
    prepared = command(tmp_path, "prepare", *data)
    assert prepared.code == 0, prepared.stderr
    assert "called       2t is T2\n" in prepared.stdout
    task = ("task.inputs=[2t]", "task.lead_times=[24]", "task.static=[]")
    trained = command(tmp_path, "train", *data, *task, "model=emos", "run_dir=run")
    assert trained.code == 0, trained.stderr
    assert "20 forecasts to train on, 20 to validate; 4 members on 5 x 8 points" in trained.stdout
    assert (tmp_path / "run" / "corrector.safetensors").is_file()


def test_prepare_ends_with_an_error_where_a_file_cannot_be_read(tmp_path, command):
    """Readable files are described first; then the error names the file that is cut off."""
    axes = {
        "time": ([0, 24], {"units": "hours since 2000-01-01"}),
        "lat": ([10.0, 0.0], {"units": "degrees_north"}), "lon": ([0.0, 10.0], {"units": "degrees_east"}),
    }  # fmt: skip
    for name in ("ensemble_1.nc", "ensemble_2.nc", "analysis.nc"):
        write(tmp_path / name, axes, "t2m", 280.0, "K")
    whole = (tmp_path / "ensemble_2.nc").read_bytes()
    (tmp_path / "ensemble_2.nc").write_bytes(whole[: len(whole) // 2])
    ended = command(tmp_path, "prepare", "data=netcdf", "path=.")
    assert ended.code == 2
    assert "variables    2t" in ended.stdout
    assert ended.stderr.startswith("error: cannot read ensemble_2.nc (")
    assert "fetch it again, or leave it out of data.archive" in ended.stderr
