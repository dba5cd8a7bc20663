"""NetCDF: CF files of ensembles, analyses and static fields, one or many, under any of the usual names.

The functions are those of `data_pipeline.formats.grib` and return the same datasets and fields. `names` maps variables
with unusual names to shortNames. `is_netcdf` recognises NetCDF files.
"""

from data_pipeline.formats.netcdf.contents import inventory, unusable
from data_pipeline.formats.netcdf.file import is_netcdf

__all__ = [
    "inventory",
    "is_netcdf",
    "unusable",
]
