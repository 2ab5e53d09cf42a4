"""Three invented hospitals, for the demo: their stays, a file each, and the data dictionary that they share."""
