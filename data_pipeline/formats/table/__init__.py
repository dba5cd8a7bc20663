"""Tables of text (CSV), Parquet and SQLite: forecasts and observations of stations, a row for each.

`columns` says what a column is, `table_datasets` arranges rows as forecasts and observations, `table_file` reads a file
and keeps both as NetCDF in the cache, from which `table_catalog` lists the fields. Imported by `formats.registry`.
"""
