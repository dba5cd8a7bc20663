"""NetCDF: CF files of ensembles, analyses and static fields, one or many, with any of the usual names.

`file` opens a file, `header` finds the roles of its coordinates, `times`, `coordinates` and `variables` interpret them,
`block` describes one variable, `catalog` many files, and `reader` reads values. Imported by `data_pipeline.formats`,
`archive` and `inventory`.
"""

from data_pipeline.formats.netcdf.contents import summarize_files, unreadable_files
from data_pipeline.formats.netcdf.file import is_netcdf

__all__ = [
    "is_netcdf",
    "summarize_files",
    "unreadable_files",
]
