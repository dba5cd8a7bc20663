"""Prefetching: read samples ahead and cache them. The seed determines the order, so it is known before the run starts.

`budget` holds the options, `order` computes the samples that each rank reads and caches, `tiers` caches them (memory,
`disk`, `peers`), `staging` and `loader` make batches. `dataset`, `training`, `evaluation` and `benchmarks` may import
this package; it does not import them.
"""
