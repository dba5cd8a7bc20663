"""Intervals, p-values and comparisons for scores of forecasts that are correlated in time: see docs/intervals.md."""
