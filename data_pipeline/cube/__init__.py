"""Cube: fields of any format laid out by variable, time and member, as xarray datasets and as samples' fields."""

from data_pipeline.cube.catalog import DOUBLE, SINGLE, Catalog, Index, Source, Window
from data_pipeline.cube.dataset import Chunks, open_cube, select
from data_pipeline.cube.fields import CubeFields, analysis_fields, ensemble_fields
from data_pipeline.cube.layout import Cube, Missing

__all__ = [
    "DOUBLE",
    "SINGLE",
    "Catalog",
    "Chunks",
    "Cube",
    "CubeFields",
    "Index",
    "Missing",
    "Source",
    "Window",
    "analysis_fields",
    "ensemble_fields",
    "open_cube",
    "select",
]
