"""From fields to a `Sample`: the input channels, the choice of forecasts, pseudo-members and the reader."""
