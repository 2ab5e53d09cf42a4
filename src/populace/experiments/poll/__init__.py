"""`poll` with answers in files: collected where the records are, counted and fitted elsewhere and later."""
