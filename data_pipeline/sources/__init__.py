"""Sources of fields beside the archive: datasets of xarray and forecast files; inventory and checks of sources."""
