"""Tools that every package uses: errors, files, option checks, messages, progress, installed packages.

This package imports nothing else of this project.
"""
