"""Statistical post-processing: raw ensemble, climatology, EMOS and boosted EMOS, all fitted in one go.

Imports `models.distribution` and `models.parallel`. `models.networks` imports EMOS as a baseline that networks correct.
"""
