"""Files of ensembles, analyses and static fields: `open` reads any format; `grib`, `netcdf` and `zarr` hold one each.

A format implements the protocols in `catalog`. `cube` arranges the fields of a catalog by variable, time and member;
`datasets` turns a cube into an xarray dataset, `fields` into samples. Imports `data_pipeline.grid`, `task`, `protocols`
and `common`; imported by the rest of `data_pipeline` and by `models.correct`.
"""
