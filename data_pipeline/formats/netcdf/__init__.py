"""NetCDF: files of ensembles, analyses and static fields, one or many.

`file` opens a file, `header` reads its variables and attributes, and `catalog` lists and reads the fields of many
files. `data_pipeline.formats.cf` interprets the headers. Imported by `data_pipeline.formats`, `archive` and
`inventory`.
"""
