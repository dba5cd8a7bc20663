"""From GRIB and NetCDF files to samples of tensors, and the verb `prepare`.

`archive` opens files, `task` defines channels and targets, `inputs` reads the fields of all channels, `dataset` makes
samples. `protocols` has the interfaces that other packages use. This package imports no other package of this project
but `conf`; `models`, `training` and `evaluation` import it.
"""
