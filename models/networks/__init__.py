"""Neural networks that correct an ensemble, and their inputs and outputs.

Imports `models.layers`, `models.distribution` and `models.statistical`.
"""
