"""A simulator of published data loaders on a cluster, for the tables in docs/prefetch.md.

`python -m benchmarks.prefetch_simulator.simulate` prints them. Only tests import this folder.
"""
