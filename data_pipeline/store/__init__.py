"""Store: a part of an archive as NetCDF files in which every sample is one stretch of bytes.

`Store.plan` says what a store will take, `Store.write` makes it or goes on making it, `Store(folder)` opens it;
`source_for` chooses between a store and the archive that it was made from.
"""

from data_pipeline.store.opened import Store, source_for
from data_pipeline.store.plan import Plan

__all__ = ["Plan", "Store", "source_for"]
