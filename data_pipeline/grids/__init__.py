"""Parts of a `Grid`: coordinates of files, points without a grid, reduced Gaussian grids, Legendre functions."""
