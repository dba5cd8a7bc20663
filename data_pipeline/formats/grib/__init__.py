"""GRIB: the border that every message crosses. No other module of the project knows ecCodes.

Reading: `open_ensemble`, `open_analysis`, `open_static` (xarray), `ensemble_fields`, `analysis_fields` (samples),
`summarize_files` (text), `index` (many files at once). Writing: `rewrite` (what came in, with other values; a `Lattice`
keeps members in their order) and `Encoder` (from nothing).
"""

from data_pipeline.formats.grib.cache import index
from data_pipeline.formats.grib.contents import summarize_files
from data_pipeline.formats.grib.encode import Encoder
from data_pipeline.formats.grib.lattice import Lattice
from data_pipeline.formats.grib.rewriting import Message, rewrite

__all__ = [
    "Encoder",
    "Lattice",
    "Message",
    "index",
    "rewrite",
    "summarize_files",
]
