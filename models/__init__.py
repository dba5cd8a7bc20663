"""Post-processing models: from a sample to a predictive distribution, and the corrector file that holds a model.

Imports `data_pipeline`. `training` and `evaluation` import this package.
"""
