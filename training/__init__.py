"""Fitting a corrector to an archive of past forecasts."""
