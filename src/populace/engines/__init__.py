"""How a protocol runs: vectorised on one machine, one client at a time, or on real sites."""
