"""Compiled loops over grid cells: scores of an ensemble in one pass, and sums over regions.

numba compiles each loop at its first call and keeps the machine code on disk (docs/decisions/025-scores.md).
Arrays are numpy arrays; the loops release the GIL, so threads of one process work at the same time.
"""
