"""Statistical post-processing: raw ensemble, climatology, EMOS and boosted EMOS, fitted without training steps.

Imports `models.distribution` and `models.parallel`. `models.networks` imports the fits that networks start from.
"""
