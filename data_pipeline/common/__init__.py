"""Small tools that every package uses: errors, files, option checks, messages, renamed options.

Imports nothing else of this project.
"""
