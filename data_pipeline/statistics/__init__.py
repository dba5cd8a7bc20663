"""Statistics: what is learnt from the training years in one pass each, as Dask graphs over an archive of any size.

Each kind of statistic is a frozen dataclass of its options whose `compute(training, at_once)` yields what belongs
into its file piece by piece; `data_pipeline.statistics.file` writes and reads these files.
"""

STATISTICS = ("normalization", "local", "climatology", "efi")
"""Their names, in the configuration and as files."""
