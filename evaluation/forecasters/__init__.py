"""What is scored: correctors and their folds, references, forecasts of files, and whether they have seen the dates."""
