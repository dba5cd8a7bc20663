"""Tools that every package uses: errors, files, option checks, messages, progress, installed packages, renamed options.

Imports nothing else of this project.
"""
