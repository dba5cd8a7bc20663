"""The folder of a training run and its contents: options, summary, statistics, checkpoints, history, loggers."""
