"""Layers that know their grid: longitude goes round, rows go on across the poles, odd sizes come out right."""
