"""From sums to numbers: `ScoreRows`, and what is written from them: scores.json, CSV and the table of the terminal."""
