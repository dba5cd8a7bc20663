"""One step of a training: batches, forward and backward pass, averages of weights, the mesh that shares them."""
