"""Regridding: weights between two grids, and the grids that options name.

`weights` combines the one-dimensional weights of `axis`; `target` finds the grid that `data.archive.grid` names.
"""
