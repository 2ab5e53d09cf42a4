"""Published experiments as grids of resumable cells: one file per experiment, one line in the registry."""
