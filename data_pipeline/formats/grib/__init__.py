"""GRIB files: read, describe and write them. Only this folder imports ecCodes and cfgrib.

`formats.open` reads fields. `summarize_files` describes files, `index_files` scans many files at once. `rewrite` copies
a file with other values, `Lattice` keeps the order of its members, `Encoder` makes new messages,
`MessageRegridder` gives messages another grid, `HeaderMarks` the headers of corrected ones.
"""

from data_pipeline.formats.grib.cache import index_files
from data_pipeline.formats.grib.contents import summarize_files
from data_pipeline.formats.grib.encode import Encoder
from data_pipeline.formats.grib.lattice import Lattice
from data_pipeline.formats.grib.marks import HeaderMarks
from data_pipeline.formats.grib.product_templates import StatisticHeader
from data_pipeline.formats.grib.readback import read_back
from data_pipeline.formats.grib.regridder import MessageRegridder
from data_pipeline.formats.grib.rewriting import Edit, Message, NewMessage, messages, rewrite

__all__ = [
    "Edit",
    "Encoder",
    "HeaderMarks",
    "Lattice",
    "Message",
    "MessageRegridder",
    "NewMessage",
    "StatisticHeader",
    "index_files",
    "messages",
    "read_back",
    "rewrite",
    "summarize_files",
]
