"""The verb `correct` on NetCDF, on several files, on folders of cycles, and on real files."""

import shutil
import socket
from itertools import product
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import torch
import xarray as xr
from correction_runs import correct, read_messages, read_sidecar, write_members
from forecast_files import write_forecasts
from grib_parts import GRID

from data_pipeline.common.errors import InputError
from data_pipeline.common.identity import sha256_of
from data_pipeline.formats.open import ensemble_fields, grid_of_files, open_ensemble
from data_pipeline.task import Task, Variable
from data_pipeline.variables.meaning import Meaning
from data_pipeline.writing import messages
from data_pipeline.writing.new_file import NewVariable, new_forecast_file
from data_pipeline.writing.value_packing import ValuePacking
from models.corrector import Corrector

pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")

TASK = Task("toy", ["2t"], ["2t"], [24, 48])
STARTS = np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]")
MEMBERS = 3
WARMER = 2.5


def shifted(path, task, grid, shift=WARMER, spread=1.0):
    """Save a corrector that adds a constant and multiplies the spread."""
    spec = {"_target_": "models.statistical.emos.EMOS", "seasonal": False, "shared": True}
    corrector = Corrector(task, grid, spec, torch.zeros(len(task.static_names), *grid.shape))
    with torch.no_grad():
        corrector.model.coefficients[:, 0] += shift
        corrector.model.coefficients[:, 3] *= spread
    corrector.save(path)
    return path


def kelvin(seed=0):
    return 280 + 8 * np.random.default_rng(seed).standard_normal((2, 3, MEMBERS, *GRID.shape))


@pytest.fixture
def forecast(tmp_path):
    """Forecasts at +24, +48 and +72 h with a further variable that has no correction."""
    values = (("number",), kelvin(), {"units": "K", "standard_name": "air_temperature", "long_name": "of the air"})
    other = (("number",), 1e5 + kelvin(1), {"units": "Pa"})
    members = {"number": ("number", [1, 2, 3], {"standard_name": "realization"})}
    shifted(tmp_path / "corrector", TASK, GRID)
    return write_forecasts(tmp_path / "in.nc", STARTS, [24, 48, 72], GRID, {"t2m": values, "msl": other}, members)


def run(command, folder, source, target, *options):
    return command(
        folder, "correct", "corrector=corrector", f"input={source}", f"output={target}", "quantile_levels=weibull",
        *options,
    )  # fmt: skip


def sorted_mean_change(raw, found):
    """The change of the ensemble mean; ranks must be those of the raw members."""
    axis = raw.dims.index("number")
    np.testing.assert_array_equal(raw.values.argsort(axis), found.values.argsort(axis))
    return (found - raw).mean("number").values


ORDERS = [
    ("init_time", "lead_time", "number", "latitude", "longitude"),
    ("number", "longitude", "latitude", "lead_time", "init_time"),
    ("latitude", "number", "init_time", "longitude", "lead_time"),
]


@pytest.mark.parametrize(("order", "turned"), [*zip(ORDERS, (False, True, True), strict=True)])
def test_netcdf_keeps_all_but_the_corrected_values(forecast, command, tmp_path, order, turned):
    with xr.open_dataset(forecast) as data:
        written = data.transpose(*order).load()
        if turned:
            written = written.isel(latitude=slice(None, None, -1), longitude=np.roll(np.arange(GRID.shape[1]), 5))
    written.attrs["title"] = "a forecast"
    written.to_netcdf(tmp_path / "own.nc")
    ended = run(command, tmp_path, "own.nc", "out.nc")
    assert ended.code == 0, ended.stderr
    assert read_sidecar(tmp_path / "out.nc")["counts"]["corrected"] == 12
    assert "out.nc: 12 fields corrected (2t at +24, +48 h), all others copied unchanged" in ended.stdout
    with xr.open_dataset(tmp_path / "own.nc") as raw, xr.open_dataset(tmp_path / "out.nc") as found:
        assert found.t2m.dims == raw.t2m.dims
        assert found.sizes == raw.sizes
        change = sorted_mean_change(raw.t2m.sel(lead_time=[24, 48]), found.t2m.sel(lead_time=[24, 48]))
        np.testing.assert_allclose(change, WARMER, atol=1e-4)
        assert found.t2m.sel(lead_time=72).identical(
            raw.t2m.sel(lead_time=72).assign_attrs(deepweather_correction=found.t2m.attrs["deepweather_correction"])
        )
        assert found.msl.identical(raw.msl)
        assert found.attrs.items() >= raw.attrs.items()
        assert len(found.attrs["deepweather_corrector_sha256"]) == 64
        for name in raw.coords:
            assert found[name].identical(raw[name])


@pytest.mark.parametrize("shift", [0.1, 60.0])
def test_packed_values_fit_or_are_packed_anew(forecast, command, tmp_path, shift):
    shifted(tmp_path / "corrector", TASK, GRID, shift)
    packing = {"dtype": "int16", "scale_factor": 0.002, "add_offset": 280.0, "_FillValue": -32767, "zlib": True}
    with xr.open_dataset(forecast) as data:
        data.load().to_netcdf(tmp_path / "packed.nc", encoding={"t2m": packing})
    ended = run(command, tmp_path, "packed.nc", "out.nc")
    assert ended.code == 0, ended.stderr
    assert ("do not fit the packing" in ended.stdout) == (shift == 60)
    with xr.open_dataset(tmp_path / "packed.nc") as raw, xr.open_dataset(tmp_path / "out.nc") as found:
        step = found.t2m.encoding["scale_factor"]
        assert found.t2m.encoding["dtype"] == np.int16
        assert found.t2m.encoding["zlib"]
        assert (step == 0.002) == (shift < 60)
        mean = (found.t2m - raw.t2m).sel(lead_time=[24, 48]).mean("number")
        np.testing.assert_allclose(mean, shift, atol=step)
        np.testing.assert_allclose(found.t2m.sel(lead_time=72), raw.t2m.sel(lead_time=72), atol=step)


def test_a_number_equal_to_the_fill_value_stays_a_number():
    packing = ValuePacking.of(np.dtype("f4"), {"_FillValue": np.float32(9999)})
    stored = packing.pack(np.array([9999.0, np.nan, 5.0]))
    assert packing.unpack(stored)[0] == pytest.approx(9999, abs=0.01)
    assert np.isnan(packing.unpack(stored)).tolist() == [False, True, False]
    whole = ValuePacking.of(np.dtype("i2"), {"scale_factor": 0.5, "missing_value": np.int16(7)})
    assert not whole.fits(0, 10)
    wide = whole.widened(0, 10)
    numbers = np.linspace(0, 10, 1001)
    np.testing.assert_allclose(wide.unpack(wide.pack(numbers)), numbers, atol=wide.scale / 2 + 1e-12)


def members_of(forecast):
    """Return the members of 2t at +24 and +48 h as `write_members` takes them."""
    with xr.open_dataset(forecast) as raw:
        return {
            ("2t", 20200101 + start, 24 * (lead + 1), number + 1): raw.t2m.values[start, lead, number]
            for start, lead, number in product((0, 1), (0, 1), range(MEMBERS))
        }


def generating_processes(path):
    """Return the identifiers of the generating processes of all messages, as ecCodes reads them."""
    return {process for (process,), _ in read_messages(path, "generatingProcessIdentifier")}


def test_netcdf_becomes_grib_and_grib_becomes_netcdf(forecast, command, tmp_path):
    assert run(command, tmp_path, "in.nc", "direct.nc").code == 0
    assert run(command, tmp_path, "in.nc", "out.grib").code == 0
    assert len(list(messages(tmp_path / "out.grib"))) == 12
    assert generating_processes(tmp_path / "out.grib") == {255}
    assert run(command, tmp_path, "in.nc", "plain.grib", "mark=false").code == 0
    assert generating_processes(tmp_path / "plain.grib") != {255}
    with netCDF4.Dataset(tmp_path / "direct.nc") as direct:
        assert "deepweather_fallback" not in direct.ncattrs()
    write_members(tmp_path / "in.grib", members_of(forecast), bitsPerValue=24)
    ended = run(command, tmp_path, "in.grib", "second.nc")
    assert ended.code == 0, ended.stderr
    assert "holds the corrected fields only" in ended.stdout
    fields = [
        open_ensemble(tmp_path / name, [Variable("2t")], [24, 48], chunks=None)["2t"].values
        for name in ("direct.nc", "out.grib", "second.nc")
    ]
    for other in fields[1:]:
        np.testing.assert_allclose(other, fields[0], atol=1e-3)  # GRIB rounds to steps of 2^-11 K
    assert run(command, tmp_path, "in.nc", "plain.nc", "mark=false").code == 0
    with netCDF4.Dataset(tmp_path / "plain.nc") as plain, netCDF4.Dataset(forecast) as raw:
        assert plain.ncattrs() == raw.ncattrs()
        assert plain["t2m"].ncattrs() == raw["t2m"].ncattrs()
    assert run(command, tmp_path, "in.nc", "more.grib", "member_count=5").code == 0
    assert [message.number for message in messages(tmp_path / "more.grib")] == 4 * [1, 2, 3, 4, 5]
    assert run(command, tmp_path, "in.grib", "fewer.nc", "member_count=2").code == 0
    assert open_ensemble(tmp_path / "fewer.nc", chunks=None).sizes["number"] == 2
    refused = run(command, tmp_path, "in.nc", "other.nc", "template=postprocessed")
    assert refused.stderr.startswith("error: template=postprocessed is for GRIB files")
    refused = run(command, tmp_path, "in.nc", "out.grib", "format=netcdf")
    assert refused.code == 2
    assert "the name of GRIB, but format=netcdf" in refused.stderr


def test_any_input_becomes_a_zarr_store(forecast, command, tmp_path):
    """It has the values and attributes of the new NetCDF file, and can be corrected again."""
    fields = members_of(forecast)
    write_members(tmp_path / "in.grib", fields, bitsPerValue=24)
    write_members(tmp_path / "one.grib", {key: field for key, field in fields.items() if key[1] == 20200101})
    for name in ("in", "one"):
        assert run(command, tmp_path, f"{name}.grib", f"{name}-out.nc").code == 0
        ended = run(command, tmp_path, f"{name}.grib", f"{name}-out.zarr")
        assert ended.code == 0, ended.stderr
        with (
            xr.open_dataset(tmp_path / f"{name}-out.nc") as netcdf,
            xr.open_zarr(tmp_path / f"{name}-out.zarr") as store,
        ):
            xr.testing.assert_identical(store.load(), netcdf.load())
            starts = 2 if name == "in" else 1
            assert store.t2m.encoding["chunks"] == (*[1] * starts, MEMBERS, *GRID.shape)
    (tmp_path / "in-out.zarr/old").touch()
    assert run(command, tmp_path, "in.nc", "in-out.zarr").code == 0  # in place of the older store
    assert not (tmp_path / "in-out.zarr/old").exists()
    store = tmp_path / "in-out.zarr"
    record = read_sidecar(store)["output"]
    assert record["bytes"] == sum(f.stat().st_size for f in store.rglob("*") if f.is_file())
    found = open_ensemble(store, [Variable("2t")], [24, 48])["2t"].values
    raw = open_ensemble(forecast, [Variable("2t")], [24, 48])["2t"].values
    np.testing.assert_allclose((found - raw).mean(2), WARMER, atol=1e-4)
    (tmp_path / "again").mkdir()
    (tmp_path / "in-out.zarr.json").unlink()  # no corrector corrects its own output
    assert run(command, tmp_path, "in-out.zarr", "again", "format=zarr").code == 0
    twice = open_ensemble(tmp_path / "again/in-out.zarr", [Variable("2t")], [24, 48])["2t"].values
    np.testing.assert_allclose((twice - raw).mean(2), 2 * WARMER, atol=1e-4)
    (store / "t2m/0.0.0.0.0").unlink()
    assert record["sha256"] != sha256_of(store)


def test_an_interrupted_store_leaves_the_older_one(tmp_path, monkeypatch):
    path, variables = tmp_path / "out.zarr", [NewVariable("t2m", Variable("2t"), "K", (0,))]
    times = STARTS[:1], [24], [1], variables

    def write(value):
        with new_forecast_file(path, GRID, *times, as_store=True) as file:
            file.put("t2m", STARTS[0], 24, np.full((1, *GRID.shape), value))
            if value == 2:
                raise KeyboardInterrupt
            file.finish({})

    write(1)
    abandoned = tmp_path / f".out.zarr.{socket.gethostname()}.999999-0.partial"
    (abandoned / "t2m").mkdir(parents=True)  # of a run that was killed
    with pytest.raises(KeyboardInterrupt):
        write(2)
    replace = Path.replace

    def interrupted(self, target):
        if target == path and "older" not in self.name:  # the older store has stepped aside for the new one
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(3)
    assert [each.name for each in tmp_path.iterdir()] == ["out.zarr"]
    assert (open_ensemble(path)["2t"].values == 1).all()
    write(np.nan)
    assert np.isnan(open_ensemble(path)["2t"].values).all()  # a field of missing values, not a missing field
    path.rename(tmp_path / "other")
    path.mkdir()
    with pytest.raises(InputError, match=r"out.zarr exists and is no Zarr store; choose another name"):
        write(3)


def cycle(path, start, leads=(24, 48)):
    keys = product(["2t"], [start], leads, range(1, MEMBERS + 1))
    return write_members(path, {key: kelvin(sum(key[1:]))[0, 0, 0] for key in keys})


def test_a_folder_is_corrected_cycle_by_cycle(command, tmp_path):
    shifted(tmp_path / "corrector", TASK, GRID)
    (tmp_path / "in").mkdir()
    for lead in (24, 48):
        cycle(tmp_path / "in" / f"a{lead}", 20200101, leads=[lead])
    cycle(tmp_path / "in" / "b", 20200102, leads=[24])  # lacks +48 h
    cycle(tmp_path / "in" / "c", 20200103)
    cut = cycle(tmp_path / "in" / "d", 20200104)
    cut.write_bytes(cut.read_bytes()[:-100])
    (tmp_path / "in" / "e").touch()
    (tmp_path / "in" / "README.txt").write_text("These are forecasts.\n")
    ended = run(command, tmp_path, "in", "out/")
    assert ended.code == 2
    assert "error: 3 of 5 cycles were not corrected" in ended.stderr
    failed = [line.split(":")[1].strip() for line in ended.stdout.splitlines() if line.startswith("not corrected")]
    assert failed == ["in/b", "in/d", "in/e"]
    assert "1 input file is left out, neither GRIB nor NetCDF: in/README.txt" in ended.stdout
    assert sorted(path.name for path in (tmp_path / "out").glob("*[!n]")) == ["a24", "a48", "c"]
    first = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*[!n]")}
    assert run(command, tmp_path, "'in/[ac]*'", "out").code == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*[!n]")} == first
    assert [read_sidecar(tmp_path / "out" / name)["counts"]["corrected"] for name in ("a24", "c")] == [3, 6]
    assert run(command, tmp_path, "in", "in").code == 2


def test_improver_applies_the_same_coefficients(samples, command, tmp_path):
    """Quantiles k/(M + 1) in rank order are the output of IMPROVER's apply-emos-coefficients."""
    folder = samples / "nc_improver_emos_temperature"
    with netCDF4.Dataset(folder / "apply_coefficients.nc") as file:
        alpha, beta, gamma, delta = (
            float(file[f"emos_coefficient_{name}"][...].item()) for name in ("alpha", "beta", "gamma", "delta")
        )
    source = tmp_path / "in.nc"
    shutil.copy(folder / "apply_input.nc", source)
    grid = grid_of_files(source)
    task = Task("improver", ["2t"], ["2t"], [12])
    spec = {"_target_": "models.statistical.emos.EMOS", "seasonal": False, "shared": True}
    corrector = Corrector(task, grid, spec, torch.zeros(len(task.static_names), *grid.shape))
    corrector.model.coefficients[0, :4, 0, 0, 0] = torch.tensor([alpha, beta, gamma, delta])
    # The coefficients are for Kelvin.
    corrector.normalizer.location.fill_(0)
    corrector.normalizer.scale.fill_(1)
    corrector.save(tmp_path / "corrector")
    ended = run(command, tmp_path, "in.nc", "out.nc")
    assert ended.code == 0, ended.stderr
    with netCDF4.Dataset(tmp_path / "out.nc") as ours, netCDF4.Dataset(folder / "apply_kgo.nc") as theirs:
        difference = ours["air_temperature"][:].astype(float) - theirs["air_temperature"][:]
    assert abs(difference).mean() < 2e-4


def test_a_truncated_netcdf_and_a_missing_lead_time_are_refused(forecast, command, tmp_path):
    (tmp_path / "cut.nc").write_bytes(forecast.read_bytes()[:-2000])
    ended = run(command, tmp_path, "cut.nc", "out.nc")
    assert (ended.code, ended.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "out.nc").exists()
    shifted(tmp_path / "corrector", Task("toy", ["2t"], ["2t"], [24, 96]), GRID)
    ended = run(command, tmp_path, "in.nc", "out.nc")
    assert "has no lead time 96 h; it has 24, 48, 72 h" in ended.stderr


def test_a_full_disk_is_one_sentence(forecast, command, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    ended = run(command, tmp_path, "in.nc", "new/out.nc")
    assert (ended.code, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("error: no space for new/out.nc: it needs about")
    assert not (tmp_path / "new").exists()


def test_stations_are_corrected(command, tmp_path):
    values = 280 + np.random.default_rng(5).standard_normal((MEMBERS, 2, 4)).astype(np.float32)
    times = np.array(["2020-01-02", "2020-01-03"], "datetime64[ns]")
    coordinates = {
        "time": ("time", times, {"standard_name": "time"}),
        "reference": ((), STARTS[0], {"standard_name": "forecast_reference_time"}),
        "number": ("number", [1, 2, 3], {"standard_name": "realization"}),
        "latitude": ("station", [47.0, 48.5, 50.0, 52.0], {"units": "degrees_north"}),
        "longitude": ("station", [11.0, 9.0, 8.0, 13.0], {"units": "degrees_east"}),
        "name": ("station", ["A", "B", "C", "D"], {"cf_role": "timeseries_id"}),
    }
    field = (("number", "time", "station"), values, {"units": "K", "coordinates": "latitude longitude name"})
    xr.Dataset({"t2m": field}, coordinates).to_netcdf(tmp_path / "in.nc")
    grid = grid_of_files(tmp_path / "in.nc")
    assert grid.shape == (4, 1)
    shifted(tmp_path / "corrector", TASK, grid)
    assert run(command, tmp_path, "in.nc", "out.nc").code == 0
    with xr.open_dataset(tmp_path / "out.nc") as found:
        np.testing.assert_allclose((found.t2m - values).mean("number"), WARMER, atol=1e-4)
        assert found.name.values.tolist() == ["A", "B", "C", "D"]
    assert run(command, tmp_path, "in.nc", "out.zarr", "products=[mean,'quantile 0.9']").code == 0
    with xr.open_zarr(tmp_path / "out.zarr") as products:
        assert products.t2m_quantile.sizes == {"time": 2, "quantile": 1, "station": 4}
        np.testing.assert_allclose(products.t2m_mean, values.mean(0) + WARMER, atol=1e-4)
        assert products.t2m_mean.station_id.values.tolist() == ["A", "B", "C", "D"]
    assert run(command, tmp_path, "in.nc", "out.zarr").code == 0
    found = open_ensemble(tmp_path / "out.zarr")["2t"]
    assert found.station.values.tolist() == ["A", "B", "C", "D"]
    np.testing.assert_allclose(found.mean("number").values.ravel() - values.mean(0).ravel(), WARMER, atol=1e-4)
    refused = run(command, tmp_path, "in.nc", "out.grib")
    assert "which GRIB cannot hold here; write NetCDF with format=netcdf" in refused.stderr


def test_the_level_is_that_of_the_training_and_stays(tmp_path):
    """`u` at 80 m is not corrected by what was learnt at 100 m; files in both formats say the height."""
    task = Task("wind", ["u"], ["u"], [24, 48])
    spec = {"_target_": "models.statistical.emos.EMOS", "seasonal": False, "shared": True}
    meanings = [Meaning(Variable("u"), "m s-1", (0, 0), f"heightAboveGround {height}") for height in (80, 100)]
    static = torch.zeros(len(task.static_names), *GRID.shape)
    low, high = (Corrector(task, GRID, spec, static, meanings=[one]) for one in meanings)
    own = (("number",), kelvin()[:, :2] / 50, {"units": "m s-1", "coordinates": "height"})
    height = {"height": ((), 80.0, {"units": "m", "standard_name": "height"})}
    path = write_forecasts(tmp_path / "in.nc", STARTS, [24, 48], GRID, {"u": own}, height)
    with pytest.raises(InputError, match="trained on u on heightAboveGround 100, not heightAboveGround 80 as in"):
        correct(high, path, tmp_path / "out.nc")
    for name in ("out.nc", "out.grib"):
        correct(low, path, tmp_path / name)
        assert ensemble_fields(tmp_path / name, task.targets, task.lead_times).meanings == (meanings[0],)
    correct(low, tmp_path / "out.grib", tmp_path / "again.nc")
    assert ensemble_fields(tmp_path / "again.nc", task.targets, task.lead_times).meanings == (meanings[0],)
