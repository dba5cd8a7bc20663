"""Formulas: inputs that are computed from other fields of a forecast, such as `advection(t@850)`."""
