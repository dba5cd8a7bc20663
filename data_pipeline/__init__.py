"""From GRIB files to samples: grids, tasks, readers, archives, the twin experiment."""
