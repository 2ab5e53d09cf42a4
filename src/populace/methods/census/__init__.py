"""`census`: noisy tables of all pairs of columns from silos, and a mixture of products fitted to their sum."""
