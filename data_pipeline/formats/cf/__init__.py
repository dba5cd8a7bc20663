"""CF conventions: what the variables of a NetCDF file or a Zarr store mean.

`header` finds the roles of coordinates, `times`, `coordinates` and `variables` interpret them, `block` describes one
variable, `catalog` many files, and `contents` summarises them. `data_pipeline.formats`, its formats, and `archive`
import this package.
"""
