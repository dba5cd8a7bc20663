"""The page of `deepweather correct explain=true`: what a correction changed most, and why."""
