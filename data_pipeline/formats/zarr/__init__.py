"""Zarr: stores of ensembles, analyses and static fields, in a folder, a zip file or at a URL; formats 2 and 3.

`detection` recognises a store, `store` finds the bytes of a key, `array` describes an array and `codecs` decodes its
chunks; `header` reads the metadata of a store, `catalog` lists the fields of many stores, and `reader` reads values.
`data_pipeline.formats.cf` interprets the headers. Imported by `data_pipeline.formats`, `archive` and `inventory`.
"""

from data_pipeline.formats.zarr.detection import is_zarr

__all__ = ["is_zarr"]
