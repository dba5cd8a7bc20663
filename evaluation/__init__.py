"""Scoring correctors against the raw ensemble, climatology and EMOS."""
