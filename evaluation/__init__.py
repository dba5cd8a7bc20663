"""Evaluation: the verb `evaluate` scores correctors against the raw ensemble, climatology and EMOS.

May import `data_pipeline` and `models`; `evaluate.py` also imports `conf`. Nothing imports this package, except
benchmarks and tests.
"""
