"""Names: which GRIB shortName a variable of a NetCDF file has.

A name is believed in this order: what the user says; cfgrib's attribute `GRIB_shortName`; the shortName itself or one
of its usual spellings; the CF standard_name with the height above ground. Any other variable keeps its own name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from data_pipeline.common.errors import InputError
from data_pipeline.task import Variable


class Parameter(NamedTuple):
    """Units and long name that ecCodes gives a shortName, its other spellings, and its CF standard_names."""

    units: str
    long_name: str
    spellings: str = ""
    standard_names: str = ""


PARAMETERS = {
    "z": Parameter("m**2 s**-2", "Geopotential", "Z geopotential", "geopotential geopotential_height"),
    "t": Parameter("K", "Temperature", "T temperature", "air_temperature"),
    "u": Parameter("m s**-1", "U component of wind", "U u_component_of_wind", "eastward_wind"),
    "v": Parameter("m s**-1", "V component of wind", "V v_component_of_wind", "northward_wind"),
    "q": Parameter("kg kg**-1", "Specific humidity", "Q specific_humidity", "specific_humidity"),
    "w": Parameter("Pa s**-1", "Vertical velocity", "W vertical_velocity", "lagrangian_tendency_of_air_pressure"),
    "d": Parameter("s**-1", "Divergence", "D", "divergence_of_wind"),
    "vo": Parameter("s**-1", "Vorticity (relative)", "VO", "atmosphere_relative_vorticity"),
    "r": Parameter("%", "Relative humidity", "R relative_humidity", "relative_humidity"),
    "gh": Parameter("gpm", "Geopotential height", "GH"),
    "clwc": Parameter("kg kg**-1", "Specific cloud liquid water content", "CLWC"),
    "ciwc": Parameter("kg kg**-1", "Specific cloud ice water content", "CIWC"),
    "sst": Parameter("K", "Sea surface temperature", "SST SSTK sea_surface_temperature", "sea_surface_temperature"),
    "tcw": Parameter("kg m**-2", "Total column water", "TCW total_column_water"),
    "tcwv": Parameter(
        "kg m**-2", "Total column vertically-integrated water vapour", "TCWV total_column_water_vapour",
        "atmosphere_mass_content_of_water_vapor",
    ),
    "cp": Parameter(
        "m", "Convective precipitation", "CP convective_precipitation",
        "lwe_thickness_of_convective_precipitation_amount",
    ),
    "tp": Parameter("m", "Total precipitation", "TP total_precipitation", "lwe_thickness_of_precipitation_amount"),
    "msl": Parameter(
        "Pa", "Mean sea level pressure", "MSL mean_sea_level_pressure",
        "air_pressure_at_mean_sea_level air_pressure_at_sea_level",
    ),
    "sp": Parameter("Pa", "Surface pressure", "SP surface_pressure", "surface_air_pressure"),
    "tcc": Parameter("(0 - 1)", "Total cloud cover", "TCC total_cloud_cover", "cloud_area_fraction"),
    "10u": Parameter("m s**-1", "10 metre U wind component", "u10 U10 U10M 10U 10m_u_component_of_wind"),
    "10v": Parameter("m s**-1", "10 metre V wind component", "v10 V10 V10M 10V 10m_v_component_of_wind"),
    "2t": Parameter("K", "2 metre temperature", "t2m T2M 2T 2m_temperature"),
    "2d": Parameter("K", "2 metre dewpoint temperature", "d2m D2M 2D 2m_dewpoint_temperature"),
    "skt": Parameter("K", "Skin temperature", "SKT skin_temperature", "surface_temperature"),
    "10si": Parameter("m s**-1", "10 metre wind speed", "si10 SI10 10m_wind_speed"),
    "100si": Parameter("m s**-1", "100 metre wind speed", "si100 SI100 100m_wind_speed"),
    "10fg": Parameter("m s**-1", "Maximum 10 metre wind gust since previous post-processing", "fg10 FG10"),
    "i10fg": Parameter("m s**-1", "Instantaneous 10 metre wind gust", "I10FG instantaneous_10m_wind_gust"),
    "mx2t": Parameter("K", "Maximum temperature at 2 metres since previous post-processing", "MX2T"),
    "mn2t": Parameter("K", "Minimum temperature at 2 metres since previous post-processing", "MN2T"),
    "lsp": Parameter(
        "m", "Large-scale precipitation", "LSP large_scale_precipitation",
        "lwe_thickness_of_stratiform_precipitation_amount",
    ),
    "ssrd": Parameter(
        "J m**-2", "Surface short-wave (solar) radiation downwards", "SSRD surface_solar_radiation_downwards"
    ),
    "swh": Parameter(
        "m", "Significant height of combined wind waves and swell", "SWH", "sea_surface_wave_significant_height"
    ),
    "lsm": Parameter("(0 - 1)", "Land-sea mask", "LSM land_sea_mask", "land_binary_mask land_area_fraction"),
    "ci": Parameter("(0 - 1)", "Sea ice area fraction", "CI siconc sea_ice_cover", "sea_ice_area_fraction"),
}  # fmt: skip
"""The variables that are known under several names; GRIB has many more, each known here by its own name."""

ALOFT = ("z", "t", "u", "v", "q", "w", "d", "vo", "r", "gh", "clwc", "ciwc")
"""Those that may lie on pressure levels; all others of `PARAMETERS` lie at the surface."""

NEAR_GROUND = {("t", 2): "2t", ("u", 10): "10u", ("v", 10): "10v"}
"""What is a parameter of its own near the ground, by its height in m."""

RELATED = {"2t": "t", "10u": "u", "10v": "v", "gh": "z"}
"""Parameters that share their standard_name with another."""

SPELLED = {word: name for name, known in PARAMETERS.items() for word in (name, *known.spellings.split())}
STANDARD = {word: name for name, known in PARAMETERS.items() for word in known.standard_names.split()}


class Names:
    """The user's own words for variables, such as {"T850": "t@850"}; they win over everything else."""

    def __init__(self, mapping: Mapping[str, str] | None = None) -> None:
        self._said = {str(name): Variable.parse(meaning) for name, meaning in (mapping or {}).items()}

    def said(self, name: str) -> Variable | None:
        """Return what the user calls the variable `name` of a file; None where nothing was said."""
        return self._said.get(name)

    def short_name(self, name: str, attributes: Mapping[str, object], height: float | None) -> str:
        """Return the shortName of the variable `name` at `height` m above the ground (None: aloft, or not known)."""
        if said := self.said(name):
            return said.name
        if re.fullmatch(r"[A-Za-z0-9_]+", grib := str(attributes.get("GRIB_shortName", ""))):
            return grib
        own = SPELLED.get(name) or SPELLED.get(str(attributes.get("short_name", "")))
        standard = STANDARD.get(str(attributes.get("standard_name", "")))
        if own and standard and RELATED.get(own, own) != RELATED.get(standard, standard):
            raise InputError(
                f"{name} may be {own} by its name or {standard} by its standard_name {attributes['standard_name']}; "
                f"say which, for instance with data.archive.names={{{name}: {own}}}"
            )
        known = own or standard
        return NEAR_GROUND.get((known, round(height)), known) if known and height is not None else known or name


def surface_only(short_name: str) -> bool:
    """Whether a parameter has no pressure level whatever coordinates stand beside it."""
    return short_name in PARAMETERS and short_name not in ALOFT
