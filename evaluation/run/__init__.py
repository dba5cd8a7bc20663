"""One run of `evaluate`: its options, the models and forecasts that are scored, and the files of its results."""
