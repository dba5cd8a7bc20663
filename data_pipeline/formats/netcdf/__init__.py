"""NetCDF: CF files of ensembles, analyses and static fields, one or many, under any of the usual names.

The functions are those of `data_pipeline.formats.grib` and return the same datasets and fields. `names` maps variables
with unusual names to shortNames. `is_netcdf` recognises NetCDF files.
"""

from data_pipeline.formats.netcdf.contents import inventory, unusable
from data_pipeline.formats.netcdf.file import is_netcdf
from data_pipeline.formats.netcdf.open import (
    analysis_fields,
    ensemble_fields,
    open_analysis,
    open_ensemble,
    open_static,
)

__all__ = [
    "analysis_fields",
    "ensemble_fields",
    "inventory",
    "is_netcdf",
    "open_analysis",
    "open_ensemble",
    "open_static",
    "unusable",
]
