"""NetCDF: CF files of ensembles, analyses and static fields, one or many, under any of the usual names.

The functions are those of `data_pipeline.grib` and give the same datasets and fields; `names` says what variables with
unusual names are. `is_netcdf` tells such files from others.
"""

from data_pipeline.netcdf.contents import inventory, unusable
from data_pipeline.netcdf.file import is_netcdf
from data_pipeline.netcdf.open import analysis_fields, ensemble_fields, open_analysis, open_ensemble, open_static

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
