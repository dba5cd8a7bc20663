"""Ranks of a run: the mesh, its launchers, the tiles of a grid and the exchange of cells between ranks.

Imports nothing else of `models`.
"""
