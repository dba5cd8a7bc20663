"""Correction of forecasts, field by field: pipelines, guards, and datasets of xarray. Most of it needs no PyTorch."""
