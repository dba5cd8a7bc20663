"""From forecasts to sums: each forecast is scored in every cell, and averages of scores are kept on a `Scoreboard`."""
