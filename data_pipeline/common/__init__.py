"""Tools that every package uses: errors, files, option checks, messages, progress, installed packages.

Imports nothing else of this project.
"""
