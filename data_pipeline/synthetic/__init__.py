"""Synthetic data that need no download: the twin experiment (`twin`) and the heat experiment (`heat`).

Configuration files name the classes of this package; of other packages, only `training.test_check` imports them. This
package imports `data_pipeline.formats`, to write GRIB and to read fields.
"""
