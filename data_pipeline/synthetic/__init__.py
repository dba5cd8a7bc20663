"""Synthetic data: the twin experiment (`twin`) and the heat experiment (`heat`), for use without any download.

Only configuration files name these classes. Imports `data_pipeline.formats` to write GRIB.
"""
