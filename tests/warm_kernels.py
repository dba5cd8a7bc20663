"""The server of `forks.py` imports this: every process that it forks then has the kernels of scores.

Loading the machine code of a kernel, or compiling it in a new clone, would otherwise take 0.5 or 5 s in each process.
"""

import numpy as np

from evaluation.kernels.ensemble_scores import ensemble_scores
from evaluation.kernels.region_sums import RegionSums

for _dtype in (np.float32, np.float64):
    ensemble_scores(np.zeros((2, 3), _dtype), np.zeros(3, _dtype))
RegionSums(np.ones((1, 1, 2))).sum(np.zeros((1, 2)), np.zeros((1, 2)))
