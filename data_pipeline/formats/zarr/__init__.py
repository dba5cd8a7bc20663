"""Zarr: stores of ensembles, analyses and static fields, in a folder, a zip file or at a URL; formats 2 and 3.

zarr-python opens stores and decodes chunks. `detection` recognises a store; `zarr_store` opens it and finds its chunks,
`reference_store` and `icechunk_store` where these are in other files; `array` reads a region of an array; `zarr_header`
reads the metadata of a store, and `zarr_catalog` lists and reads the fields of many stores. `data_pipeline.formats.cf`
interprets the headers, `anemoi` those of anemoi's datasets. `new_store` writes a store. Imported by
`data_pipeline.formats`, `data_pipeline.writing`, `archive` and `inventory`.
"""
