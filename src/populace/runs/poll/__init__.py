"""`poll` from files: answers collected, counted and fitted apart from one another."""
