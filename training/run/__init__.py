"""The folder of a training run and what it holds: options, summary, statistics, checkpoints, history, loggers."""
