"""Parts of `benchmarks.scaling`: a training step on several ranks, its memory and traffic, and models of its time.

Only benchmarks and tests import this folder.
"""
