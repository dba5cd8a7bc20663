"""Statistics of the training years, computed as Dask graphs that read an archive of any size once.

Each statistic is a frozen dataclass of its options. Its method `compute(training, at_once)` yields the contents of its
file piece by piece. `statistic_file` writes and reads the files. The verb `prepare` computes statistics; `training` and
`models` may import this package, which imports only `data_pipeline`.
"""

STATISTICS = ("normalization", "efi")
"""Names of the statistics, as in the configuration and as file names."""
