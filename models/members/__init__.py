"""From a corrected distribution to members and products: quantiles, rank order, bounds and the conformal layer."""
