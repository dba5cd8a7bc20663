"""Neural networks that correct an ensemble: their inputs (`features`), architectures, and outputs (`head`).

To write a network, read `mlp.py`, then `unet.py`.

Imports `models.layers`, `models.distribution` and `models.statistical`.
"""
