"""Baselines for tables: one-way marginals, and randomised response over whole records."""
