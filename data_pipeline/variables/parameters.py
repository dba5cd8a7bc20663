"""The table of known GRIB parameters: units, names in files and in reports, physical bounds, processing over time.

`data_pipeline.task.Variable` and `data_pipeline.formats.cf` read this table. A variable that is not in the table can be
used too, with the units and the name in its file.
"""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

Bounds = tuple[float | None, float | None]

UNBOUNDED: Bounds = (None, None)
NON_NEGATIVE: Bounds = (0.0, None)
FRACTION: Bounds = (0.0, 1.0)


class Law(NamedTuple):
    """The family of distributions that a variable's forecasts have, and the power of the variable that has it.

    `family` is one of `models.distribution.FAMILIES`. With `power` 1/2 the roots of the variable follow the family.
    """

    family: str = "normal"
    power: float = 1.0


NORMAL = Law()
AMOUNT = Law("censored_logistic", 0.5)
"""For amounts that are often zero and have a long tail: the roots of rain at Innsbruck have the best score so."""
POSITIVE = Law("censored_normal")
"""For values that come near zero without a long tail, such as wind speed. Wind speed at Dillingen has the same score
with the truncated normal distribution of Thorarinsdottir & Gneiting 2010 (doi:10.1111/j.1467-985X.2009.00616.x)."""

Process = Literal["instant", "mean", "accumulation", "maximum", "minimum"]
"""Statistical processing over a time interval; `instant` fields have none."""


class Display(NamedTuple):
    """Units for tables and figures, and the factor that converts the table's units to them."""

    units: str
    factor: float = 1.0


class Parameter(NamedTuple):
    """One GRIB parameter; `units` and `long_name` are those of ecCodes.

    `spellings` are other names in NetCDF files, `standard_names` the names in the CF conventions, separated by spaces.
    `title` is the name in tables for readers. `has_levels` is true if the parameter may lie on pressure levels, false
    if it always lies at the surface. `bounds` are the physical minimum and maximum. `sea_only` is true if the field is
    missing, or constant, on land. `process` is the processing over time that the shortName implies, and `hours` the
    interval if the shortName implies one. `water` marks an amount of water, for which 1 kg m⁻² is 1 mm. Values up to
    `trace`, such as 0.1 mm of rain, count as zero, as in ECMWF's extreme forecast index. `law` is the distribution that
    models fit unless their options say otherwise.
    """

    units: str
    long_name: str
    spellings: str = ""
    standard_names: str = ""
    title: str = ""
    has_levels: bool = False
    bounds: Bounds = UNBOUNDED
    sea_only: bool = False
    process: Process = "instant"
    hours: int = 0
    water: bool = False
    trace: float = -math.inf
    law: Law = NORMAL

    @property
    def printed_units(self) -> str:
        """Units as they are printed.

        >>> PARAMETERS["z"].printed_units, PARAMETERS["tcc"].printed_units
        ('m² s⁻²', '1')
        """
        powers = re.sub(r"\*\*(-?\d)", lambda power: power[1].translate(_SUPERSCRIPTS), self.units)
        return powers.replace("(0 - 1)", "1").replace(" of water equivalent", "")

    @property
    def display(self) -> Display:
        """Units in tables and figures: mm for a depth of water, else the parameter's units.

        >>> PARAMETERS["tp"].display, PARAMETERS["2t"].display
        (Display(units='mm', factor=1000.0), Display(units='K', factor=1.0))
        """
        if self.water and self.printed_units == "m":
            return Display("mm", 1000.0)
        return Display(self.printed_units)


_SUPERSCRIPTS = str.maketrans("-12", "⁻¹²")

PARAMETERS = {
    "z": Parameter(
        "m**2 s**-2", "Geopotential", spellings="Z geopotential", standard_names="geopotential geopotential_height",
        title="geopotential", has_levels=True,
    ),
    "t": Parameter(
        "K", "Temperature", spellings="T temperature", standard_names="air_temperature", title="temperature",
        has_levels=True, bounds=NON_NEGATIVE,
    ),
    "u": Parameter(
        "m s**-1", "U component of wind", spellings="U u_component_of_wind", standard_names="eastward_wind",
        title="eastward wind", has_levels=True,
    ),
    "v": Parameter(
        "m s**-1", "V component of wind", spellings="V v_component_of_wind", standard_names="northward_wind",
        title="northward wind", has_levels=True,
    ),
    "q": Parameter(
        "kg kg**-1", "Specific humidity", spellings="Q specific_humidity", standard_names="specific_humidity",
        title="specific humidity", has_levels=True, bounds=NON_NEGATIVE, law=POSITIVE,
    ),
    "w": Parameter(
        "Pa s**-1", "Vertical velocity", spellings="W vertical_velocity",
        standard_names="lagrangian_tendency_of_air_pressure", title="vertical velocity", has_levels=True,
    ),
    "d": Parameter(
        "s**-1", "Divergence", spellings="D", standard_names="divergence_of_wind", title="divergence",
        has_levels=True,
    ),
    "vo": Parameter(
        "s**-1", "Vorticity (relative)", spellings="VO", standard_names="atmosphere_relative_vorticity",
        has_levels=True,
    ),
    "r": Parameter(
        "%", "Relative humidity", spellings="R relative_humidity", standard_names="relative_humidity", has_levels=True,
        bounds=NON_NEGATIVE, law=POSITIVE,
    ),
    "gh": Parameter("gpm", "Geopotential height", spellings="GH", has_levels=True),
    "clwc": Parameter(
        "kg kg**-1", "Specific cloud liquid water content", spellings="CLWC", has_levels=True, bounds=NON_NEGATIVE,
        law=AMOUNT,
    ),
    "ciwc": Parameter(
        "kg kg**-1", "Specific cloud ice water content", spellings="CIWC", has_levels=True, bounds=NON_NEGATIVE,
        law=AMOUNT,
    ),
    "sst": Parameter(
        "K", "Sea surface temperature", spellings="SST SSTK sea_surface_temperature",
        standard_names="sea_surface_temperature", title="sea-surface temperature", bounds=NON_NEGATIVE,
        sea_only=True,
    ),
    "tcw": Parameter(
        "kg m**-2", "Total column water", spellings="TCW total_column_water", title="total column water",
        bounds=NON_NEGATIVE, law=POSITIVE,
    ),
    "tcwv": Parameter(
        "kg m**-2", "Total column vertically-integrated water vapour", spellings="TCWV total_column_water_vapour",
        standard_names="atmosphere_mass_content_of_water_vapor", title="total column water vapour", bounds=NON_NEGATIVE,
        law=POSITIVE,
    ),
    "cp": Parameter(
        "m", "Convective precipitation", spellings="CP convective_precipitation",
        standard_names="lwe_thickness_of_convective_precipitation_amount", title="convective precipitation",
        bounds=NON_NEGATIVE, process="accumulation", water=True, trace=1e-4, law=AMOUNT,
    ),
    "tp": Parameter(
        "m", "Total precipitation", spellings="TP total_precipitation",
        standard_names="lwe_thickness_of_precipitation_amount", title="total precipitation", bounds=NON_NEGATIVE,
        process="accumulation", water=True, trace=1e-4, law=AMOUNT,
    ),
    "cape": Parameter(
        "J kg**-1", "Convective available potential energy", spellings="CAPE",
        standard_names="atmosphere_convective_available_potential_energy", bounds=NON_NEGATIVE, trace=1e-4, law=AMOUNT,
    ),
    "msl": Parameter(
        "Pa", "Mean sea level pressure", spellings="MSL mean_sea_level_pressure",
        standard_names="air_pressure_at_mean_sea_level air_pressure_at_sea_level", title="mean sea-level pressure",
    ),
    "sp": Parameter("Pa", "Surface pressure", spellings="SP surface_pressure", standard_names="surface_air_pressure"),
    "tcc": Parameter(
        "(0 - 1)", "Total cloud cover", spellings="TCC total_cloud_cover", standard_names="cloud_area_fraction",
        title="total cloud cover", bounds=FRACTION, law=POSITIVE,
    ),
    "10u": Parameter(
        "m s**-1", "10 metre U wind component", spellings="u10 U10 U10M 10U 10m_u_component_of_wind",
        title="10 m eastward wind",
    ),
    "10v": Parameter(
        "m s**-1", "10 metre V wind component", spellings="v10 V10 V10M 10V 10m_v_component_of_wind",
        title="10 m northward wind",
    ),
    "2t": Parameter(
        "K", "2 metre temperature", spellings="t2m T2M 2T 2m_temperature", title="2 m temperature",
        bounds=NON_NEGATIVE,
    ),
    "2d": Parameter(
        "K", "2 metre dewpoint temperature", spellings="d2m D2M 2D 2m_dewpoint_temperature", bounds=NON_NEGATIVE,
    ),
    "skt": Parameter(
        "K", "Skin temperature", spellings="SKT skin_temperature", standard_names="surface_temperature",
        title="skin temperature", bounds=NON_NEGATIVE,
    ),
    "10si": Parameter(
        "m s**-1", "10 metre wind speed", spellings="si10 SI10 10m_wind_speed", bounds=NON_NEGATIVE, law=POSITIVE,
    ),
    "100si": Parameter(
        "m s**-1", "100 metre wind speed", spellings="si100 SI100 100m_wind_speed", bounds=NON_NEGATIVE, law=POSITIVE,
    ),
    "10fg": Parameter(
        "m s**-1", "Maximum 10 metre wind gust since previous post-processing", spellings="fg10 FG10",
        bounds=NON_NEGATIVE, process="maximum", law=POSITIVE,
    ),
    "i10fg": Parameter(
        "m s**-1", "Instantaneous 10 metre wind gust", spellings="I10FG instantaneous_10m_wind_gust",
        bounds=NON_NEGATIVE, law=POSITIVE,
    ),
    "ws": Parameter(
        "m s**-1", "Wind speed", spellings="wind_speed", standard_names="wind_speed", title="wind speed",
        has_levels=True, bounds=NON_NEGATIVE, law=POSITIVE,
    ),
    "vis": Parameter(
        "m", "Visibility", spellings="VIS visibility", standard_names="visibility_in_air", bounds=NON_NEGATIVE,
        law=AMOUNT,
    ),
    "lcc": Parameter(
        "(0 - 1)", "Low cloud cover", spellings="LCC low_cloud_cover", standard_names="low_type_cloud_area_fraction",
        bounds=FRACTION, law=POSITIVE,
    ),
    "mcc": Parameter(
        "(0 - 1)", "Medium cloud cover", spellings="MCC medium_cloud_cover",
        standard_names="medium_type_cloud_area_fraction", bounds=FRACTION, law=POSITIVE,
    ),
    "hcc": Parameter(
        "(0 - 1)", "High cloud cover", spellings="HCC high_cloud_cover", standard_names="high_type_cloud_area_fraction",
        bounds=FRACTION, law=POSITIVE,
    ),
    "mx2t": Parameter(
        "K", "Maximum temperature at 2 metres since previous post-processing", spellings="MX2T",
        bounds=NON_NEGATIVE, process="maximum",
    ),
    "mn2t": Parameter(
        "K", "Minimum temperature at 2 metres since previous post-processing", spellings="MN2T",
        bounds=NON_NEGATIVE, process="minimum",
    ),
    "lsp": Parameter(
        "m", "Large-scale precipitation", spellings="LSP large_scale_precipitation",
        standard_names="lwe_thickness_of_stratiform_precipitation_amount", bounds=NON_NEGATIVE, process="accumulation",
        water=True, trace=1e-4, law=AMOUNT,
    ),
    "ssrd": Parameter(
        "J m**-2", "Surface short-wave (solar) radiation downwards", spellings="SSRD surface_solar_radiation_downwards",
        bounds=NON_NEGATIVE, process="accumulation", law=POSITIVE,
    ),
    "sf": Parameter(
        "m of water equivalent", "Snowfall", spellings="SF snowfall", standard_names="lwe_thickness_of_snowfall_amount",
        title="snowfall", bounds=NON_NEGATIVE, process="accumulation", water=True, trace=1e-4, law=AMOUNT,
    ),
    "e": Parameter(
        "m of water equivalent", "Evaporation", standard_names="lwe_thickness_of_water_evaporation_amount",
        process="accumulation", water=True,
    ),
    "ro": Parameter("m", "Runoff", process="accumulation", water=True, bounds=NON_NEGATIVE, law=AMOUNT),
    "ssr": Parameter(
        "J m**-2", "Surface net short-wave (solar) radiation", spellings="SSR", process="accumulation",
        bounds=NON_NEGATIVE, law=POSITIVE,
    ),
    "str": Parameter(
        "J m**-2", "Surface net long-wave (thermal) radiation", spellings="STR", process="accumulation",
    ),
    "strd": Parameter(
        "J m**-2", "Surface long-wave (thermal) radiation downwards", spellings="STRD", process="accumulation",
    ),
    "sshf": Parameter(
        "J m**-2", "Time-integrated surface sensible heat net flux", spellings="SSHF", process="accumulation",
    ),
    "slhf": Parameter(
        "J m**-2", "Time-integrated surface latent heat net flux", spellings="SLHF", process="accumulation",
    ),
    "ttr": Parameter("J m**-2", "Top net long-wave (thermal) radiation", spellings="TTR", process="accumulation"),
    "sund": Parameter("s", "Sunshine duration", bounds=NON_NEGATIVE, process="accumulation", law=POSITIVE),
    "mx2t3": Parameter(
        "K", "Maximum temperature at 2 metres in the last 3 hours", bounds=NON_NEGATIVE, process="maximum", hours=3,
    ),
    "mn2t3": Parameter(
        "K", "Minimum temperature at 2 metres in the last 3 hours", bounds=NON_NEGATIVE, process="minimum", hours=3,
    ),
    "mx2t6": Parameter(
        "K", "Maximum temperature at 2 metres in the last 6 hours", bounds=NON_NEGATIVE, process="maximum", hours=6,
    ),
    "mn2t6": Parameter(
        "K", "Minimum temperature at 2 metres in the last 6 hours", bounds=NON_NEGATIVE, process="minimum", hours=6,
    ),
    "10fg3": Parameter(
        "m s**-1", "Maximum 10 metre wind gust in the last 3 hours", spellings="fg10_3", bounds=NON_NEGATIVE,
        process="maximum", hours=3, law=POSITIVE,
    ),
    "10fg6": Parameter(
        "m s**-1", "Maximum 10 metre wind gust in the last 6 hours", spellings="fg10_6", bounds=NON_NEGATIVE,
        process="maximum", hours=6, law=POSITIVE,
    ),
    "swh": Parameter(
        "m", "Significant height of combined wind waves and swell", spellings="SWH",
        standard_names="sea_surface_wave_significant_height", bounds=NON_NEGATIVE, sea_only=True, law=POSITIVE,
    ),
    "lsm": Parameter(
        "(0 - 1)", "Land-sea mask", spellings="LSM land_sea_mask",
        standard_names="land_binary_mask land_area_fraction",
    ),
    "ci": Parameter(
        "(0 - 1)", "Sea ice area fraction", spellings="CI siconc sea_ice_cover", standard_names="sea_ice_area_fraction",
        bounds=FRACTION, law=POSITIVE,
    ),
}  # fmt: skip
"""The known parameters by GRIB shortName."""

PLAUSIBLE: dict[str, Bounds] = {
    **dict.fromkeys(("2t", "mx2t", "mn2t", "mx2t3", "mn2t3", "mx2t6", "mn2t6"), (180.0, 335.0)),
    **dict.fromkeys(("u", "v", "10u", "10v"), (-200.0, 200.0)),
    **dict.fromkeys(("10si", "100si", "10fg", "i10fg", "10fg3", "10fg6"), (0.0, 200.0)),
    "t": (120.0, 340.0), "skt": (170.0, 360.0), "2d": (150.0, 315.0), "sst": (268.0, 315.0), "swh": (0.0, 40.0),
    "msl": (8.5e4, 1.1e5), "sp": (2.5e4, 1.1e5), "tcwv": (0.0, 150.0), "tcw": (0.0, 150.0),
}  # fmt: skip
"""Ranges beyond all records on Earth, where the physical bounds are wider. The records of air at 2 m are 184 and 330 K,
sea-level pressures 870 and 1085 hPa; a jet stream may reach 130 m s-1."""

VECTOR_COMPONENTS = (
    "u", "v", "10u", "10v", "100u", "100v", "200u", "200v", "u10n", "v10n", "ewss", "nsss", "iews", "inss",
    "lgws", "mgws", "ust", "vst", "viwve", "viwvn", "ocu", "ocv",
)  # fmt: skip
"""Eastward and northward components of winds, stresses, fluxes and currents, which change sign across a pole."""
