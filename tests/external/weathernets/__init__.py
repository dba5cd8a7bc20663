"""Example of a package with models of its own; tests use it as an installed package."""
