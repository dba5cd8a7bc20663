"""Cube: fields of any format laid out by variable, time and member, as xarray datasets and as samples' fields."""

from data_pipeline.formats.cube.catalog import DOUBLE, SINGLE, Catalog, FieldReader, Index, Window
from data_pipeline.formats.cube.dataset import Chunks, open_cube, select
from data_pipeline.formats.cube.fields import CubeFields, analysis_fields, ensemble_fields
from data_pipeline.formats.cube.layout import Cube, Missing

__all__ = [
    "DOUBLE",
    "SINGLE",
    "Catalog",
    "Chunks",
    "Cube",
    "CubeFields",
    "FieldReader",
    "Index",
    "Missing",
    "Window",
    "analysis_fields",
    "ensemble_fields",
    "open_cube",
    "select",
]
