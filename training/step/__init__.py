"""One step of a training: batches, forward and backward pass, averages of weights, and data-parallel training."""
