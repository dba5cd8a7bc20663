"""Networks of papers, built again part for part; to correct forecasts choose one of `models.networks`.

Imports `models.networks` for baselines and heads, and `models.layers`.
"""
