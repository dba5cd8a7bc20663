"""GRIB: the border that every message crosses. No other module of the project knows ecCodes.

Reading: `open_ensemble`, `open_analysis`, `open_static`, `inventory`. Writing: `rewrite` (what came in, with
other values; a `Lattice` keeps members in their order) and `Encoder` (from nothing).
"""

from data_pipeline.grib.contents import inventory
from data_pipeline.grib.encode import Encoder
from data_pipeline.grib.fields import DOUBLE
from data_pipeline.grib.lattice import Lattice
from data_pipeline.grib.open import open_analysis, open_ensemble, open_static, select
from data_pipeline.grib.paths import expand
from data_pipeline.grib.rewriting import Message, rewrite

__all__ = [
    "DOUBLE",
    "Encoder",
    "Lattice",
    "Message",
    "expand",
    "inventory",
    "open_analysis",
    "open_ensemble",
    "open_static",
    "rewrite",
    "select",
]
