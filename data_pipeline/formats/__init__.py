"""File formats of ensembles, analyses and static fields: one folder per format, and in `cube` what all formats share.

`data_pipeline.archive` and `prepare` import the functions that `grib` and `netcdf` export; no other file outside this
folder knows a format. Imports `data_pipeline.grid`, `task`, `protocols` and `common`.
"""
