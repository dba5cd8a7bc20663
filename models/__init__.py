"""From a sample to a predictive distribution: post-processing models and the corrector that carries one."""
