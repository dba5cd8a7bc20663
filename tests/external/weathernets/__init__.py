"""Models of a package outside the project, as a third party would write them; tests see it as an installed package."""
