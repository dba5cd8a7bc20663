"""Averages of several models: a committee of correctors, and the default, `auto`."""
