"""Tools that every package uses: errors, files, option checks, messages, installed packages, renamed options.

Imports nothing else of this project.
"""
