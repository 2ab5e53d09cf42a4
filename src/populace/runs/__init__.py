"""A run and its folder: what is asked, what is run, what is written and verified."""
