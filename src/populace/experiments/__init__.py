"""Which runs: from a specification to a folder with everything in it."""
