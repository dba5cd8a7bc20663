"""One run of `evaluate`: its options, what it scores, and the files that it writes."""
