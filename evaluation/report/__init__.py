"""The report of an evaluation: its page, figures and tables."""
