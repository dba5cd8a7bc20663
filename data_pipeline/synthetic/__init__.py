"""Synthetic data that need no download: the twin experiment (`twin`) and the heat experiment (`heat`).

Configuration files name these classes; apart from `training.test_check`, no other package imports them. This package
imports `data_pipeline.formats`, to write GRIB and to read fields.
"""
