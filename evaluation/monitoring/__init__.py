"""Running scores of corrected forecasts, control charts of their drift, and the page of the verb `monitor`."""
