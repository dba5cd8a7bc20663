"""Real NetCDF files: each is opened correctly or refused with the right message."""

import netCDF4
import numpy as np
import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import open_analysis, open_ensemble, open_static

NO_ANALYSIS = r"has forecasts but no analysis \(step 0\)"
NO_TIME = "has no time; add it"
MEMBERS = "at realization 0.* and .*at realization 1.* both hold 2t"
MONTHS = "counts parts of months, and a month has no fixed length"
NO_PLACE = "has no variable on latitudes and longitudes; it has emos_coefficient_alpha, "
NO_START = "has valid times but no start of the forecasts"
UNITS = r"is in '1', GRIB has sst in K; convert its values, for instance with cdo -setattribute,sst@units=\"K\" -addc"
TWICE = "at time 0.* and .*at time 1.* both hold"
IMPROVER = "nc_improver_emos_temperature"
HISTORY = [f"201706{day}T0300Z-PT0012H-temperature_at_screen_level" for day in ("02", "03", "04")]

REFUSED = {
    **{
        f"{IMPROVER}/{name}.nc": {"analysis": NO_ANALYSIS, "static": MEMBERS}
        for name in ("apply_input", "apply_kgo", *(f"history/{name}" for name in HISTORY))
    },
    **{f"{IMPROVER}/truth/{name.replace('T03', 'T15').replace('12H', '00H')}.nc": {} for name in HISTORY},
    f"{IMPROVER}/landmask.nc": {"ensemble": NO_TIME, "analysis": NO_TIME},
    **{
        f"{IMPROVER}/{name}.nc": dict.fromkeys(("ensemble", "analysis", "static"), NO_PLACE)
        for name in ("apply_coefficients", "kgo_coefficients", "kgo_coefficients_land_only")
    },
    "nc_nmme_ccsm4_chirps/CCSM4.PRCP.nc": {
        "ensemble": rf"\(prec\): L {MONTHS}", "analysis": MONTHS, "static": "at S 0, L 0, M 0.* both hold prec",
    },
    "nc_nmme_ccsm4_chirps/UCSB.PRCP.nc": {
        "ensemble": rf"\(prcp\): T {MONTHS}", "analysis": MONTHS, "static": "at M 0, T 0.* both hold prcp",
    },
    "nc_nmme_ccsm4_chirps/southasia_lsmask.nc": {"ensemble": NO_START},
    "geo_neuralgcm_era5/era5_tl31_19590102T00.nc": {"ensemble": NO_START},
    "geo_speedy_t30/surface.nc": {"ensemble": NO_START},
    "geo_speedy_t30/land.nc": {"ensemble": NO_START, "static": TWICE},
    "geo_speedy_t30/sea_ice.nc": {"ensemble": NO_START, "static": TWICE},
    "geo_speedy_t30/snow.nc": {"ensemble": NO_START, "static": TWICE},
    "geo_speedy_t30/sea_surface_temperature.nc": {"ensemble": NO_START, "analysis": UNITS, "static": UNITS},
}  # fmt: skip
"""The message of each function that refuses a file; other functions open the file."""

OPENERS = {"ensemble": open_ensemble, "analysis": open_analysis, "static": open_static}


def test_every_file_is_listed(samples):
    folders = [folder for pattern in ("nc_*", "geo_*") for folder in samples.glob(pattern)]
    files = {str(path.relative_to(samples)) for folder in folders for path in folder.rglob("*.nc")}
    assert files == REFUSED.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused_in_one_sentence(samples, name):
    for opener, sentence in REFUSED[name].items():
        with pytest.raises(InputError, match=sentence) as raised:
            OPENERS[opener](samples / name)
        assert "\n" not in str(raised.value)


OPENED = [(name, opener) for name, refusals in REFUSED.items() for opener in OPENERS if opener not in refusals]


@pytest.mark.parametrize(("name", "opener"), [pair for pair in OPENED if pair[0].startswith(IMPROVER)])
def test_projected_grids_open_as_points(samples, name, opener):
    """Values begin in the south-west and follow row by row; `test_projection.py` compares positions with PROJ."""
    dataset = OPENERS[opener](samples / name).load()
    with netCDF4.Dataset(samples / name) as file:
        own = next(n for n in ("air_temperature", "land_binary_mask") if n in file.variables)
        stored = file[own][...]
    (shown,) = dataset.values()
    np.testing.assert_array_equal(shown.values.reshape(stored.shape), stored)
    lat, lon = (dataset[axis].values.reshape(200, 200) for axis in ("latitude", "longitude"))
    assert (np.diff(lat, axis=0) > 0).all()
    assert (np.diff(lon, axis=1) > 0).all()


@pytest.mark.parametrize(("name", "opener"), [pair for pair in OPENED if not pair[0].startswith(IMPROVER)])
def test_values_equal_those_read_by_netcdf4(samples, name, opener):
    """Every variable on the globe is compared at its time and level, in the order of the grid."""
    dataset = OPENERS[opener](samples / name).load()
    compared = set()
    with netCDF4.Dataset(samples / name) as file:
        lat, lon = (next(v for n, v in file.variables.items() if n.lower().startswith(key)) for key in ("lat", "lon"))
        rows, columns = np.argsort(-lat[:]), np.argsort(lon[:])
        np.testing.assert_allclose(dataset.latitude, lat[rows])
        np.testing.assert_allclose(dataset.longitude, lon[columns])
        names = {getattr(file[own], "short_name", own): own for own in file.variables} | {
            "ci": "sea_ice_cover" if "sea_ice_cover" in file.variables else "icec"
        }
        for ours, shown in dataset.items():
            stored = file[names[ours]]
            expected = np.ma.filled(stored[...].astype(float), np.nan)
            order = [stored.dimensions.index(d) for d in stored.dimensions if d not in (lat.name, lon.name)]
            order += [stored.dimensions.index(lat.name), stored.dimensions.index(lon.name)]
            expected = expected.transpose(order)[..., rows, :][..., columns]
            if "level" in shown.dims:
                expected = expected[np.argsort(-file["level"][:])]
            np.testing.assert_array_equal(shown.values.reshape(expected.shape), expected)
            compared.add(names[ours])
        whole = {name for name, v in file.variables.items() if {lat.name, lon.name} <= {*v.dimensions}}
    if opener == "analysis":
        assert compared == whole
    assert compared
