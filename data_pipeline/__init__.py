"""From GRIB and NetCDF files to samples of tensors, and the verb `prepare`.

`archive` opens files, `task` defines channels and targets, `inputs` reads the fields of all channels, `dataset` makes
samples. `protocols` has the interfaces that other packages use. Imports no other package of this project but `conf`;
imported by `models`, `training` and `evaluation`.
"""
