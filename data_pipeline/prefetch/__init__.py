"""Prefetching: samples are read ahead and cached in the order that the seed determines, known before the run starts.

`budget` holds the options, `order` computes the samples that each rank reads and caches, `tiers` caches them (memory,
`disk`, `peers`), `staging` and `loader` make batches. `dataset`, `training`, `evaluation` and `benchmarks` may import
this package; it imports nothing of them.
"""
