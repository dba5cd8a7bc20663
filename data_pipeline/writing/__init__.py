"""Writers of GRIB and NetCDF: copies of forecasts with other values, and new files.

`rewrite` copies a GRIB file with other values, `Encoder` makes new messages, `HeaderMarks` marks the headers of
corrected messages, `MessageRegridder` gives messages another grid, and `read_back` checks a written file.
`forecast_copy` copies NetCDF files, `new_file` makes new NetCDF files.
"""

from data_pipeline.writing.encode import Encoder
from data_pipeline.writing.marks import HeaderMarks
from data_pipeline.writing.product_templates import StatisticHeader
from data_pipeline.writing.readback import read_back
from data_pipeline.writing.regridder import MessageRegridder
from data_pipeline.writing.rewriting import Edit, Message, NewMessage, messages, rewrite

__all__ = [
    "Edit",
    "Encoder",
    "HeaderMarks",
    "Message",
    "MessageRegridder",
    "NewMessage",
    "StatisticHeader",
    "messages",
    "read_back",
    "rewrite",
]
