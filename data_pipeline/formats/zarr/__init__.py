"""Zarr: stores of ensembles, analyses and static fields, in a folder, a zip file or at a URL; formats 2 and 3.

zarr-python opens stores and decodes chunks. `detection` recognises a store, `store` opens it and finds its chunks, and
`array` reads a region of an array; `header` reads the metadata of a store, and `catalog` lists and reads the fields of
many stores. `data_pipeline.formats.cf` interprets the headers. Imported by `data_pipeline.formats`,
`archive` and `inventory`.
"""

from data_pipeline.formats.zarr.detection import is_zarr

__all__ = ["is_zarr"]
