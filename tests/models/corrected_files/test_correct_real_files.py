"""`correct` on real files: each is corrected by a corrector for its own grid, or refused in a sentence."""

from pathlib import Path

import eccodes
import numpy as np
import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.block import FieldBlock
from data_pipeline.formats.cf.cf_variables import NameMap
from data_pipeline.formats.netcdf.netcdf_catalog import NetCDFCatalog
from data_pipeline.formats.open import ensemble_fields, grid_of_files
from data_pipeline.grid import Grid
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.task import Task, Variable
from data_pipeline.writing import messages
from models.corrected_files.correct_files import correct_files
from models.corrected_files.input_files import InputFiles, type_of
from models.corrector import Corrector
from models.engines.torch_engine import TorchEngine
from models.members.options import CorrectionOptions
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh

NO_START = "has valid times but no start of the forecasts"
NO_GRID = "has no variable on latitudes and longitudes"
MONTHS = "and a month has no fixed length"
GZIP = "is compressed with gzip, not GRIB or NetCDF; unpack it first"
REDUCED = "train the corrector with data.archive.grid"
FILES: dict[str, str | int] = {
    "fo_dillingen/dillingen_station.RData": GZIP,
    "fo_hannover/hannover_station.RData": GZIP,
    "fo_rainibk/RainIbk.rda": GZIP,
    "geo_neuralgcm_era5/era5_tl31_19590102T00.nc": NO_START,
    "geo_speedy_t30/land.nc": NO_START,
    "geo_speedy_t30/sea_ice.nc": NO_START,
    "geo_speedy_t30/sea_surface_temperature.nc": NO_START,
    "geo_speedy_t30/snow.nc": NO_START,
    "geo_speedy_t30/surface.nc": NO_START,
    "grib_cfgrib_samples/alternate-scanning.grib": 1,
    "grib_cfgrib_samples/era5-levels-corrupted.grib": "is damaged: the message at byte 0 does not end after",
    "grib_cfgrib_samples/era5-levels-members.grib": 40,
    "grib_cfgrib_samples/fields_with_missing_values.grib": 2,
    "grib_cfgrib_samples/forecast_monthly_ukmo.grib": 7,
    "grib_cfgrib_samples/hpa_and_pa.grib": 1,
    "grib_cfgrib_samples/multi_param_on_multi_dims.grib": 1,
    "grib_cfgrib_samples/reduced_gg.grib": REDUCED,
    "grib_cfgrib_samples/regular_gg_pl.grib": 1,
    "grib_cfgrib_samples/regular_ll_wrong_increment.grib": 1,
    "grib_cfgrib_samples/scanning_mode_64.grib": 1,
    "grib_cfgrib_samples/single_gridpoint.grib": "climate mean of 2t, which are no forecasts",
    "grib_cfgrib_samples/soil-surface-level-mix.grib": 1,
    "grib_cfgrib_samples/step_60m.grib": 1,
    "grib_cfgrib_samples/t_analysis_and_fc_0.grib": 1,
    "grib_cfgrib_samples/tp_on_different_grid_resolutions.grib": "has tp on 37 x 72 points",
    "grib_cfgrib_samples/uv_on_different_levels.grib": 1,
    "grib_earthkit/O32_global.grib2": REDUCED,
    "grib_earthkit/ens_none.grib": 1,
    "grib_earthkit/hdate.grib": 1,
    "grib_earthkit/healpix_H8.grib2": REDUCED,
    "grib_earthkit/rotated_wind_20x20.grib": 1,
    "grib_earthkit/test_padding.grib": 1,
    "grib_earthkit/test_single_with_missing.grib": 1,
    "grib_gribberish_small/aifs-single-t500.grib2": 1,
    "grib_gribberish_small/ecmwf_soil_8vars_tiny.grib1": 1,
    "grib_gribberish_small/gfs.t18z.pgrb2.0p25.f186-RH.grib2": "has no 2t; it has r",
    "grib_gribberish_small/s2s-pdt9-pdt10-pdt12.grib2": "has no 2t; it has probability of avg_2t",
    "grib_metview_ens/fc_storm.grib": 1,
    "grib_metview_ens/ml_data.grib": 1,
    "grib_metview_ens/t_n48.grib": REDUCED,
    "grib_metview_ens/t_time_series.grib": 1,
    "grib_metview_ens/t_with_missing.grib": 1,
    "grib_metview_ens/z500_ens.grib": 51,
    "grib_metview_ens/ztu_multi_dim.grib": 6,
    "nc_improver_emos_temperature/apply_coefficients.nc": NO_GRID,
    "nc_improver_emos_temperature/apply_input.nc": 12,
    "nc_improver_emos_temperature/apply_kgo.nc": 12,
    "nc_improver_emos_temperature/kgo_coefficients.nc": NO_GRID,
    "nc_improver_emos_temperature/kgo_coefficients_land_only.nc": NO_GRID,
    "nc_improver_emos_temperature/landmask.nc": "has no 2t; it has lsm",
    **{
        f"nc_improver_emos_temperature/history/2017060{day}T0300Z-PT0012H-temperature_at_screen_level.nc": 12
        for day in (2, 3, 4)
    },
    **{
        f"nc_improver_emos_temperature/truth/2017060{day}T1500Z-PT0000H-temperature_at_screen_level.nc": 1
        for day in (2, 3, 4)
    },
    "nc_nmme_ccsm4_chirps/CCSM4.PRCP.nc": MONTHS,
    "nc_nmme_ccsm4_chirps/UCSB.PRCP.nc": MONTHS,
    "nc_nmme_ccsm4_chirps/southasia_lsmask.nc": NO_START,
}
"""Number of corrected fields of the first variable and lead time, or the sentence of the refusal."""


def first_field(path: Path) -> tuple[Variable, int]:
    """Variable and lead time (hours) of the first field that has them."""
    if type_of(path) == "grib":
        found = next(iter(messages(path)), None)
        return (found.variable, found.lead_time) if found else (Variable("2t"), 24)
    for block in NetCDFCatalog.read_blocks(path, NameMap()):
        if isinstance(block, FieldBlock) and block.time.coordinates and block.variables[0]:
            return block.variables[0], int(block.times.leads.min()) // 60
    return Variable("2t"), 24


def task_of(path: Path) -> Task:
    variable, lead = first_field(path)
    return Task("real", [str(variable)], [str(variable)], [lead])


def correct(path: Path, output: Path, shift: float = 1.0) -> int:
    """Add a number to the fields of the first variable and lead time; return how many they are."""
    InputFiles.find(str(path))
    grid = grid_of_files(path)
    if isinstance(grid, ReducedGrid):
        grid = Grid.regular(19, 36)
    task = task_of(path)
    spec = {"_target_": "models.statistical.emos.EMOS", "seasonal": False, "shared": True}
    corrector = Corrector(task, grid, spec, torch.zeros(len(task.static_names), *grid.shape)).eval()
    corrector.model.coefficients[:, 0] += shift
    engine = TorchEngine(corrector, Domain.of(grid), torch.device("cpu"), "real", None)
    return correct_files([engine], [path], output, Mesh.single(), CorrectionOptions()).messages


def ensemble_mean(path: Path, task: Task) -> np.ndarray:
    fields = ensemble_fields([path], task.targets, task.lead_times)
    values = np.empty((len(fields.numbers), 1, *fields.grid.shape))
    fields.read(fields.cells[0, 0], values)
    return values.mean(0)


def bits_of(path: Path) -> int:
    """Bits per value of the most precise message of the corrected variable; single precision has 24."""
    if type_of(path) == "netcdf":
        return 24
    bits = []
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            if eccodes.codes_get(handle, "shortName") == task_of(path).targets[0].name:
                bits.append(eccodes.codes_get(handle, "bitsPerValue"))
            eccodes.codes_release(handle)
    return max(bits) or 16


# Files of other days have the same layout.
@pytest.mark.parametrize("name", [name for name in FILES if "2017060" not in name or "20170602" in name])
def test_a_real_file_is_corrected_or_refused(name, samples, tmp_path):
    path, expected = samples / name, FILES[name]
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected) as refused:
            correct(path, tmp_path / "out")
        assert str(path) in str(refused.value)
        assert "\n" not in str(refused.value)
        assert not (tmp_path / "out").exists()
        return
    raw = ensemble_mean(path, task_of(path))
    shift = float(np.nanmax(raw) - np.nanmin(raw)) / 4 or 1.0
    assert correct(path, tmp_path / "out", shift) == expected
    found = ensemble_mean(tmp_path / "out", task_of(path))
    np.testing.assert_array_equal(np.isnan(raw), np.isnan(found))
    bounds = [bound for bound in task_of(path).targets[0].bounds if bound is not None]
    free = np.isfinite(raw) & ~np.isin(found, bounds)
    # Lattices have steps of up to twice the range divided by the steps of the packing; values are off by half of one.
    tolerance = 4 * shift / (2 ** bits_of(path) - 3) + 1e-3 * shift + 2e-6 * np.nanmax(abs(found))
    np.testing.assert_allclose((found - raw)[free], shift, atol=tolerance)


def test_every_real_file_has_an_expectation(samples):
    there = {str(path.relative_to(samples)) for path in samples.rglob("*") if path.is_file()}
    assert {name for name in there if not name.endswith((".txt", ".md"))} == {*FILES}
