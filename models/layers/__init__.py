"""Layers on the sphere. Each layer computes on the whole globe or on the tile of one rank, with equal results.

Imports `models.parallel` for halos and sums over ranks. `models.networks` builds networks from these layers.
"""
