"""Variables: names, parameters of GRIB, units, physical meaning, and thresholds of events."""
