"""GRIB files: read, describe and write them. Only this folder imports ecCodes and cfgrib.

`formats.open` reads fields. `summarize_files` describes files, `index_files` scans many files at once. `rewrite` copies
a file with other values, `Lattice` keeps the order of its members, `Encoder` makes new messages.
"""

from data_pipeline.formats.grib.cache import index_files
from data_pipeline.formats.grib.contents import summarize_files
from data_pipeline.formats.grib.encode import Encoder
from data_pipeline.formats.grib.lattice import Lattice
from data_pipeline.formats.grib.rewriting import Message, rewrite

__all__ = [
    "Encoder",
    "Lattice",
    "Message",
    "index_files",
    "rewrite",
    "summarize_files",
]
