"""The memory plan: the cost of one step is measured, and micro-batches and checkpointed layers are chosen by it."""
