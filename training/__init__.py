"""Training: the verb `train` fits a corrector to past forecasts and analyses, by PyTorch Lightning.

May import `data_pipeline` and `models`; `train.py` also imports `conf`. Nothing imports this package, except tests,
benchmarks and scripts of users.
"""
