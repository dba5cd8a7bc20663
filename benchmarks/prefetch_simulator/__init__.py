"""A simulator of published data loaders on a cluster, for the figures of docs/prefetch.md."""
