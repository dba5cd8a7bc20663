"""Derived store: the samples of a task as NetCDF files in which every sample is one contiguous block of bytes.

`Store.plan` describes a store, `Store.write` makes or completes it, `Store(folder)` opens it; `choose_source` returns a
store or the archive from which it was made. `prepare`, `training`, `evaluation` and `benchmarks` may import this
package; it imports the archive's `formats`, never models.
"""

from data_pipeline.store.store import Store, choose_source
from data_pipeline.store.store_plan import StorePlan

__all__ = ["Store", "StorePlan", "choose_source"]
