"""Benchmarks: one file per claim of speed or memory in docs/benchmarks.md; nothing of the product imports this folder.

`mesh` holds the parts of the benchmarks of training on several ranks, `prefetch_simulator` a simulator of published
data loaders.
"""
