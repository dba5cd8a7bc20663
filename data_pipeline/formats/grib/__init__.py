"""GRIB files: read and describe them. Only this folder and `data_pipeline/writing` import ecCodes and cfgrib.

`formats.open` reads fields, `grib_contents` describes files, `cache` scans them. `lattice` keeps the order of packed
members.
"""
