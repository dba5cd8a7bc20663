"""GRIB files: read and describe them. Only this folder and `data_pipeline/writing` import ecCodes and cfgrib.

`formats.open` reads fields. `summarize_files` describes files, `index_files` scans many files at once. `Lattice` keeps
the order of packed members.
"""

from data_pipeline.formats.grib.cache import index_files
from data_pipeline.formats.grib.grib_contents import summarize_files
from data_pipeline.formats.grib.lattice import Lattice

__all__ = ["Lattice", "index_files", "summarize_files"]
